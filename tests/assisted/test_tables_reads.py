"""Which runs of the tables are one run, and which are not."""

import pytest
from tests.assisted.ratings_file import words, write_ratings

from coterie.assisted.paper import PAPER
from coterie.assisted.readings import baseline
from coterie.assisted.settings import Settings
from coterie.assisted.tables.study import essential, train
from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import changed
from coterie.core.tables.study import fingerprint

IMPLICIT = {"data.feedback": "implicit"}
UNIFORM = {"data.domains": "uniform"}
RELEASED = {"reading": "released"}


def mark(settings):
    return fingerprint(essential(settings), "")


def of(method, model="aae", **given):
    """Settings of a run, given those of the run of MTAL that it is compared with."""
    settings = changed(Settings(), given)
    return settings if method == "mtal" else baseline(settings, method, model)


UNREAD = [
    (("joint", "mf"), {}, UNIFORM),
    (("joint", "mf"), UNIFORM, {"data.count": 3}),
    (("joint", "aae"), {}, {"data.common": 0.5}),
    (("alone", "ncf"), {}, {"assist.eta": 0.1, "assist.own": "leave-out"}),
    (("alone", "mlp"), {}, {"model.hidden": 64, "model.dropout": 0.1}),
    (("alone", "aae"), {}, {"privacy.noise": "laplace", "privacy.scale": 1.0, "privacy.clip": 1.0}),
    (("alone", "aae"), {}, {"start": "logit", "compare": True, "evaluation": "local"}),
    (("joint", "base"), {}, {"train.epochs": 5, "train.lr": 0.1, "rounds": 3, "patience": 2}),
    (("alone", "bias"), {}, {"data.side": True, "model.code": 8}),
    (("alone", "base"), {}, {"train.batch_rows": 7}),
    (("alone", "aae"), RELEASED, {"data.valid": 0.2}),
    (("mtal",), {}, {"start": "logit"}),
    (("mtal",), {}, {"assist.lbfgs_lr": 0.1}),
    (("mtal",), RELEASED, {"data.valid": 0.2}),
    (("mtal",), {}, {"model.biases": "broadcast", "run.progress": False}),
]
READ = [
    (("alone", "mf"), {}, UNIFORM),
    (("alone", "mf"), UNIFORM, {"data.count": 3}),
    (("joint", "mf"), {}, {"model.biases": "broadcast"}),
    (("joint", "mf"), {}, {"data.side": True}),
    (("joint", "mf"), {}, {"train.weight_decay": 0.0}),
    (("alone", "mlp"), {}, {"model.code": 64}),
    (("alone", "aae"), {}, {"model.hidden": 64}),
    (("alone", "aae"), {}, {"rounds": 5}),
    (("alone", "aae"), {}, {"data.valid": 0.2}),
    (("alone", "base"), {}, {"data.test": 0.2}),
    (("alone", "base"), IMPLICIT, {"start": "mean"}),
    (("alone", "base"), RELEASED, {"train.batch_rows": 7}),
    (("alone", "bias"), {}, {"seed": 1}),
    (("joint", "aae"), {}, {"reading": "released"}),
    (("joint", "aae"), {}, {"data.align": "item", **UNIFORM}),
    (("mtal",), {}, {"data.common": 0.5}),
    (("mtal",), {}, {"assist.eta": 0.1}),
    (("mtal",), {}, {"assist.own": "leave-out"}),
    (("mtal",), {}, {"protect.residuals": "dp"}),
    (("mtal",), {}, {"patience": 2}),
    (("mtal",), {"assist.eta_rule": "lbfgs"}, {"assist.lbfgs_lr": 0.1}),
    (("mtal",), IMPLICIT, {"start": "logit"}),
    (("mtal",), IMPLICIT, {"data.threshold": 4.5}),
    (("mtal",), {}, {"train.hide": 0.5}),
]


@pytest.mark.parametrize(("run", "given", "more"), UNREAD)
def test_what_is_not_read_makes_no_other_run(run, given, more):
    assert mark(of(*run, **given)) == mark(of(*run, **given, **more))


@pytest.mark.parametrize(("run", "given", "more"), READ)
def test_what_is_read_makes_another_run(run, given, more):
    assert mark(of(*run, **given)) != mark(of(*run, **given | more))


def test_the_smoothed_rate_is_one_run_joint_and_alone():
    joint, alone = (of(method, "rate", **IMPLICIT) for method in ("joint", "alone"))
    assert mark(joint) == mark(alone)
    assert mark(of("joint", "base", **IMPLICIT)) != mark(of("alone", "base", **IMPLICIT))


def test_rankings_are_of_all_organisations():
    assert essential(Settings()).evaluation == "pooled"


@pytest.mark.parametrize("reading", ["recommended", "released"])
@pytest.mark.parametrize(
    ("method", "model", "feedback"),
    [
        ("joint", "aae", "explicit"),
        ("alone", "mf", "explicit"),
        ("alone", "bias", "explicit"),
        ("joint", "base", "implicit"),
        ("alone", "aae", "implicit"),
    ],
)
def test_a_run_of_what_is_read_has_the_same_numbers(tmp_path, reading, method, model, feedback):
    more = [f"--reading={reading}", f"--data.feedback={feedback}", "--evaluation=pooled"]
    more += ["--data.domains=uniform", "--data.count=3", "--data.common=.5", "--assist.eta=.1"]
    file = write_ratings(tmp_path)
    settings = configure(PAPER, words(file, tmp_path, *more)).settings
    asked = baseline(settings, method, model)
    assert train(asked).metrics == train(essential(asked)).metrics


def test_half_of_the_rows_in_common_are_ranked_whole(tmp_path):
    more = ["--data.domains=uniform", "--data.count=3", "--evaluation=pooled"]
    file = write_ratings(tmp_path)
    settings = configure(PAPER, words(file, tmp_path, *more, "--data.feedback=implicit")).settings
    whole = baseline(settings, "alone", "mf")
    half = changed(whole, {"data.common": 0.5})
    assert train(whole).metrics == train(half).metrics
