"""Arithmetic of the tables on made-up runs: best rounds, contrasts, what the paper has beside."""

import math

import numpy as np
import pytest
from scipy import stats

from coterie.core.tables.result import NAN, RunResult
from coterie.msmt.published import ALIEXPRESS, TENREC
from coterie.msmt.tables.layout import (
    against,
    at_own_rounds,
    difference_notes,
    measured,
    pair_note,
    panels,
)
from coterie.msmt.tables.main_table import curve, printed, reached
from coterie.msmt.tables.study import judged_by


def run_of(personal, test, whose="personal"):
    """A run whose personal validation AUCs are these, round by round; global ones fall."""
    result = RunResult()
    for number, (valid, value) in enumerate(zip(personal, test, strict=True)):
        result.note(
            {
                "eval/personal_auc": valid,
                "test/personal_auc": value,
                "eval/global_auc": 0.9 - 0.1 * number,
                "test/global_auc": 0.1 * number,
            }
        )
    return judged_by(result, whose)


def test_the_round_that_is_best_on_validation_is_reported():
    run = run_of([0.5, 0.7, 0.6], [0.4, 0.3, 0.9])
    assert measured([run], "auc") == [0.3]
    assert measured([run], "auc", "eval") == [0.7]


def test_a_run_may_be_judged_by_its_other_models():
    run = run_of([0.5, 0.7, 0.6], [0.4, 0.3, 0.9], "global")
    assert measured([run], "auc") == [0.0]
    other = judged_by(run, "personal")
    assert measured([other], "auc") == [0.3]
    assert measured([run], "auc") == [0.0]  # unchanged
    assert list(curve(other)) == [0.5, 0.7, 0.6]


def test_a_round_is_reached_once():
    run = run_of([0.5, 0.7, 0.6], [0, 0, 0])
    assert reached(run, 0.6) == 2
    assert math.isnan(reached(run, 0.8))


def test_each_scenario_may_have_a_round_of_its_own():
    run = run_of([0.6, 0.7, 0.5], [0.0, 0.0, 0.0])
    valid = [[0.5, 0.8, NAN], [0.9, 0.6, NAN], [NAN, 0.7, NAN]]
    test = [[0.1, 0.2, 0.7], [0.3, 0.4, 0.8], [0.5, 0.6, 0.9]]
    run.course = {"eval/personal_auc": valid, "test/personal_auc": test}
    # The last one has no validation AUC, and so the round that is best for the mean, the second.
    assert at_own_rounds([run]) == [pytest.approx((0.3 + 0.2 + 0.8) / 3)]


@pytest.fixture
def table():
    own, near, low = [0.70, 0.72, 0.71, 0.73], [0.71, 0.71, 0.72, 0.72], [0.60, 0.61, 0.62, 0.61]
    high = [value + 0.1 + 0.001 * number for number, value in enumerate(own)]
    values = {"own": own, "near": near, "low": low, "high": high}
    rows = {label: [run_of([0.5], [v]) for v in found] for label, found in values.items()}
    return {"a world": rows}, values


def test_contrasts_are_paired_and_adjusted(table):
    rows, values = table[0]["a world"], table[1]
    found = against(rows, "own")
    p = {label: stats.ttest_rel(values["own"], values[label]).pvalue for label in found}
    ranked = sorted(p, key=p.get)
    largest = 0.0
    for place, label in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - place) * p[label]))
        assert found[label].p == pytest.approx(largest)
        difference = np.mean(values["own"]) - np.mean(values[label])
        assert found[label].found.difference == pytest.approx(difference)
    assert {label: one.verdict for label, one in found.items()} == {
        "near": "within noise",
        "low": "better",
        "high": "worse",
    }


def test_notes_say_what_the_tests_say(table):
    (note,) = difference_notes(table[0], "own")
    better, worse, alike = (
        note.index(word)
        for word in ("better than low", "worse than high", "not to be told from near")
    )
    assert better < worse < alike
    assert "over 4 seeds" in note
    single = {"w": {label: runs[:1] for label, runs in table[0]["a world"].items()}}
    (note,) = difference_notes(single, "own")
    assert "untested beside near -1.00, low +10.00" in note
    assert note.endswith("One seed cannot be tested.")


def test_pairs_are_adjusted_over_worlds(table):
    rows = table[0]["a world"]
    note = pair_note({"one": rows, "two": rows}, "high", "own", "why")
    assert note.startswith("high minus own, in points (why): one +10.15 (")
    note = pair_note({"one": rows, "two": rows}, "near", "own", "why")
    p = stats.ttest_rel(table[1]["near"], table[1]["own"]).pvalue
    assert note.count(f"p = {p:.2f}, Holm = {min(1.0, 2 * p):.2f}") == 2


def test_the_panel_has_every_other_row(table):
    (drawn,) = (one.series["a world"] for one in panels(table[0], "own"))
    assert list(drawn) == ["near", "low", "high"]
    assert drawn["low"].difference == pytest.approx(0.105)


def test_the_papers_rows_are_those_of_its_data():
    assert printed(ALIEXPRESS, "mmoe")["NL"] == {"auc_ctr": 0.7195, "auc_ctcvr": 0.8574}
    assert list(printed(TENREC, "aitm")) == []
    assert printed(TENREC, "fedavg")["QB-video"]["auc_click"] == 0.8025
    assert printed(ALIEXPRESS, None) == {}
