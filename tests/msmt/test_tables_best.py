"""The table of ``--variant best`` at a size that takes seconds."""

import pytest
import torch
from tests.msmt.test_tables import by_hand, configured, mean

from coterie.core.errors import UserError
from coterie.core.settings.schema import changed
from coterie.msmt.tables import best, make_table
from coterie.msmt.tables.study import Study

pytestmark = pytest.mark.long
MORE = ("--variant=best", "--data.shift=0.3", "--ensemble.epochs=1", "--rounds=3")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def report(out):
    return make_table(configured(out, *MORE), seeds=(0, 1, 2), workers=0)


def settings_of(out, run, seed):
    some = configured(out, *MORE).settings
    study = Study(configured(out, *MORE), (0,), 0)
    assert some.model.name == "esmm" == best.chosen_network(study, "shift 0.3")
    return changed(best.settings_of(study.settings, run, "esmm"), {"seed": seed})


def test_rows_and_rounds(report, out):
    lines = [(line["method"], line["network"], line["rounds"]) for line in report.view]
    assert len(lines) == 5 + 2 + 5 + 2 + 1 + 1
    assert ("FedAvg", "chosen", "own") not in lines  # one model for all
    assert lines[-1] == ("Mixed", "chosen", "one")
    assert len(list((out / "pf-msmtrec/tables/cache").iterdir())) == 7 * 3
    assert settings_of(out, ("chosen", "mixed"), 0).rounds == 3
    assert settings_of(out, ("template", "fedavg"), 0).rounds == 2


@pytest.mark.parametrize(
    ("name", "run", "network", "whose"),
    [
        ("mixed", ("chosen", "mixed"), "chosen", "personal"),
        ("control", ("chosen", "control"), "chosen", "personal"),
        ("fedavg-own", ("template", "fedavg"), "template", "personal"),
        ("fine-tuned", ("chosen", "mixed"), "chosen", "tuned"),
    ],
)
def test_numbers_are_those_of_the_runs(report, out, name, run, network, whose):
    found = [by_hand(settings_of(out, run, seed), whose)[0] for seed in (0, 1, 2)]
    shown = mean(report, name, "test/auc", network=network)
    assert shown == pytest.approx(sum(found) / 3, abs=1e-12)


def test_the_mix_is_tested_against_the_best_of_the_others_and_the_control(report):
    rival, control, weight = report.notes[-3:]
    others = {
        (line["method"], line["network"], line["rounds"]): float(line["shift 0.3"].split()[0])
        for line in report.view
        if line["method"] not in ("Mixed", "fine-tuned alone")
    }
    name = max(others, key=others.__getitem__)
    own = float(report.view[-1]["shift 0.3"].split()[0])
    assert f"shift 0.3 ({name[0].partition(':')[0]}, {name[1]}" in rival
    assert f" {100 * (own - others[name]):+.1f}"[:4] in rival or abs(own - others[name]) < 1e-3
    assert "control" in control
    assert "Holm = " in rival
    assert 0 <= float(weight.split("shift 0.3 ")[1].split()[0]) <= 1


def test_other_methods_and_tables_are_refused(out):
    with pytest.raises(UserError, match="leave out --table for a table of the variant"):
        make_table(configured(out, *MORE), table=2)
    with pytest.raises(UserError, match="name a table or a figure"):
        make_table(configured(out))
    study = Study(configured(out, "--data.shift=0.3"), (0,), 0)
    with pytest.raises(UserError, match="this table is of the method ensemble"):
        best.best_table(study)


def test_best_rival_is_that_of_the_highest_mean():
    made = best._Made({"a": {}})
    made.values["a"] = {
        ("template", "local", "one"): [0.6, 0.7],
        ("chosen", "control", "own"): [0.7, 0.7],
        ("chosen", "control", "one"): [0.6, 0.6],
        ("chosen", "fine-tuned", "one"): [0.9, 0.9],  # a part of the mix
        ("chosen", "mixed", "one"): [0.8, 0.8],
    }
    assert made.rival("a") == ("control, chosen, own rounds", [0.7, 0.7])
    assert made.mixed("a") == [0.8, 0.8]
