"""Which runs of the tables are one run, and which are not."""

from dataclasses import replace

import pytest
from tests.assisted.ratings_file import words, write_ratings

from coterie.assisted.paper import PAPER
from coterie.assisted.readings import baseline
from coterie.assisted.settings import EXCHANGING, Settings
from coterie.assisted.tables.rows import ceilings
from coterie.assisted.tables.study import Cell, Study, essential, train
from coterie.core.errors import UserError
from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import changed
from coterie.core.tables.study import fingerprint

IMPLICIT = {"data.feedback": "implicit"}
UNIFORM = {"data.domains": "uniform"}
RELEASED = {"reading": "released"}
NOISE = {"privacy.noise": "laplace", "privacy.scale": 1.0, "privacy.clip": 1.0}


def mark(settings):
    return fingerprint(essential(settings), "")


def of(method, model="aae", **given):
    """Settings of a run, given those of the run of MTAL that it is compared with."""
    if method in EXCHANGING:
        return changed(Settings(), {"method": method, "model.name": model, **given})
    return baseline(changed(Settings(), given), method, model)


UNREAD = [
    (("joint", "mf"), {}, UNIFORM),
    (("joint", "mf"), UNIFORM, {"data.count": 3}),
    (("joint", "aae"), {}, {"data.common": 0.5}),
    (("alone", "ncf"), {}, {"assist.eta": 0.1, "assist.own": "leave-out"}),
    (("alone", "mlp"), {}, {"model.hidden": 64, "model.dropout": 0.1}),
    (("alone", "aae"), {}, NOISE),
    (("alone", "aae"), {}, {"start": "logit", "compare": True, "evaluation": "local"}),
    (("joint", "base"), {}, {"train.epochs": 5, "train.lr": 0.1, "rounds": 3, "patience": 2}),
    (("alone", "bias"), {}, {"data.side": True, "model.code": 8}),
    (("alone", "base"), {}, {"train.batch_rows": 7}),
    (("alone", "aae"), RELEASED, {"data.valid": 0.2}),
    (("mtal",), {}, {"start": "logit"}),
    (("mtal",), {}, {"assist.lbfgs_lr": 0.1}),
    (("mtal",), RELEASED, {"data.valid": 0.2}),
    (("mtal",), {}, {"model.biases": "broadcast", "run.progress": False}),
    (("residuals", "autorec"), {}, {"assist.eta": 0.1, "data.side": True, "model.rank": 3}),
    (("residuals", "autorec"), {"train.hide": 0.5}, {"train.own_targets": "hidden"}),
    (("residuals", "gaussian"), {}, {"model.hidden": 64, "train.lr": 0.1, "train.batch_rows": 7}),
    (("sums", "autorec"), {}, {"train.epochs": 5, "train.batch_rows": 7}),
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
    (("mtal",), {}, NOISE),
    (("mtal",), {"objectives": {"Drama": "logistic"}}, {"start": "logit"}),
    (("residuals", "autorec"), {}, NOISE),
    (("residuals", "autorec"), {}, {"protect.residuals": "dp"}),
    (("residuals", "autorec"), {}, {"data.common": 0.5}),
    (("residuals", "autorec"), {}, {"model.samples": "users"}),
    (("residuals", "autorec"), {}, {"train.epochs": 5}),
    (("residuals", "blend"), {}, {"model.rank": 3}),
    (("sums", "autorec"), {}, NOISE),
    (("sums", "gaussian"), {}, {"start": "bias"}),
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


@pytest.mark.parametrize(
    "flags",
    [
        ["--method=residuals", "--data.common=.5", "--assist.eta=.1", "--train.own_targets=hidden"],
        ["--method=residuals", "--privacy.noise=laplace", "--privacy.scale=1", "--privacy.clip=2"],
        ["--method=sums", "--train.epochs=3", "--train.batch_rows=7"],
    ],
)
def test_so_has_a_run_of_what_organisations_send(tmp_path, flags):
    more = ["--data.domains=uniform", "--data.count=3", "--evaluation=pooled", "--train.hide=.3"]
    more += ["--model.name=autorec", "--model.members=2", *flags]
    asked = configure(PAPER, words(write_ratings(tmp_path), tmp_path, *more)).settings
    assert train(asked).metrics == train(essential(asked)).metrics


def test_half_of_the_rows_in_common_are_ranked_whole(tmp_path):
    more = ["--data.domains=uniform", "--data.count=3", "--evaluation=pooled"]
    file = write_ratings(tmp_path)
    settings = configure(PAPER, words(file, tmp_path, *more, "--data.feedback=implicit")).settings
    whole = baseline(settings, "alone", "mf")
    half = changed(whole, {"data.common": 0.5})
    assert train(whole).metrics == train(half).metrics


ITEMS = Cell("explicit", "item", "uniform")
USERS = Cell("explicit", "user", "uniform")


@pytest.mark.parametrize(
    ("cell", "flags", "names"),
    [
        (USERS, [], ["best", "sums"]),
        (Cell("implicit", "user", "uniform"), [], ["best"]),
        (ITEMS, [], ["best"]),
        (ITEMS, ["--model.samples=users"], ["best", "sums"]),
        (USERS, ["--model.samples=users"], ["best"]),
        (USERS, ["--data.common=.5"], ["best"]),
        (USERS, ["--protect.residuals=dp"], ["best"]),
        (Cell("explicit", "user", "source"), [], ["best"]),
    ],
)
def test_sums_have_a_row_where_organisations_can_have_one_model(cell, flags, names):
    asked = Study(configure(PAPER, [*flags, "--variant=best"]), (0,), 0)
    found = asked.variants(cell, "recommended")
    assert list(found) == names
    assert [settings.method for settings in found.values()] == ["residuals", "sums"][: len(names)]


def test_sums_have_a_row_whatever_samples_the_variant_best_has(monkeypatch):
    asked = Study(configure(PAPER, ["--variant=best"]), (0,), 0)
    best = changed(asked.best(USERS, "recommended"), {"model.samples": "both"})
    monkeypatch.setattr(Study, "best", lambda self, cell, reading: best)
    found = asked.variants(USERS, "recommended")
    assert [settings.model.samples for settings in found.values()] == ["both", "items"]


def test_a_variant_that_is_another_method_has_no_table():
    with pytest.raises(UserError, match="variant 'sums' is another method"):
        Study(configure(PAPER, ["--variant=sums"]), (0,), 0).settings  # noqa: B018
    assert Study(configure(PAPER, ["--variant=best"]), (0,), 0).settings.method == "residuals"


@pytest.mark.parametrize(("data", "members"), [("ml-100k", 5), ("ml-1m", 3)])
def test_the_variant_best_is_what_the_docs_describe(data, members):
    found = configure(PAPER, [f"--data={data}", "--variant=best"]).settings
    assert (found.method, found.model.name) == ("residuals", "autorec")
    assert (found.start, found.model.samples) == ("constant", "both")
    assert found.model.members == members


def test_the_variant_noisy_is_what_the_docs_describe():
    found = configure(PAPER, ["--data=ml-100k", "--variant=noisy"]).settings
    assert (found.method, found.model.name, found.model.samples) == ("residuals", "autorec", "both")
    assert (found.protect.own, found.protect.centre) == ("protected", "receiver")
    low, high = found.data.scale
    assert 2 * (high - low) / found.privacy.scale == 4.0  # ε of a rating, which moves 2 (R - 3)


def test_one_who_holds_all_data_has_it_whole_and_hides_nothing():
    limits = {**UNIFORM, "data.count": 3, "data.common": 0.5, "protect.residuals": "dp"}
    asked = changed(Settings(), limits)
    (parts,) = (row.settings for row in ceilings(USERS, asked, asked) if row.name == "joint-mtal")
    assert mark(parts) == mark(of("mtal", **UNIFORM, **{"data.count": 3, "data.align": "item"}))
    noisy = changed(Settings(), {**UNIFORM, "data.count": 3, **NOISE})
    clean = changed(Settings(), {**UNIFORM, "data.count": 3})
    assert [mark(row.settings) for row in ceilings(USERS, noisy, noisy)] == [
        mark(row.settings) for row in ceilings(USERS, clean, clean)
    ]


@pytest.mark.parametrize("cell", [USERS, ITEMS])
def test_one_who_holds_all_data_is_trained_as_the_variant_best_of_these_data(cell):
    asked = Study(configure(PAPER, ["--data=ml-1m", "--variant=best"]), (0,), 0)
    best = asked.best(cell, "recommended")
    tuned = asked.tuned(cell, "recommended")
    rows = {row.name: row.settings for row in ceilings(cell, tuned, best)}
    alone = "bias" if cell.align == "user" else best.start
    for method, samples, start in (("joint", "items", best.start), ("alone", "both", alone)):
        found = rows[f"{method}-autorec"]
        assert (found.method, found.start) == (method, start)
        members = {"joint": 5, "alone": best.model.members}[method]
        assert found.model == replace(best.model, samples=samples, members=members)
        assert (found.train, found.rounds) == (best.train, best.rounds)
