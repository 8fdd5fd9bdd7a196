"""One method against all others, with values worked out by scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from coterie.core.tables.paired import contrasts, gains, holm, rank

RNG = np.random.default_rng(0)
VALUES = {
    name: (mean + RNG.normal(0, 0.01, 5)).tolist()
    for name, mean in {"own": 0.5, "low": 0.3, "same": 0.5, "high": 0.7}.items()
}


def test_every_other_method_is_tested_and_adjusted():
    found = contrasts(VALUES | {"silent": [math.nan] * 5}, "own")
    assert list(found) == ["low", "same", "high"]  # without a number: left out
    p = [stats.ttest_rel(VALUES["own"], VALUES[name]).pvalue for name in found]
    assert [c.found.p for c in found.values()] == pytest.approx(p)
    assert [c.p for c in found.values()] == pytest.approx(holm(p))
    assert [c.verdict for c in found.values()] == ["better", "within noise", "worse"]


def test_each_of_the_others_minus_one_is_the_reverse():
    ours, theirs = contrasts(VALUES, "own"), gains(VALUES, "own")
    assert list(theirs) == list(ours)
    for name, found in theirs.items():
        expected = stats.ttest_rel(VALUES[name], VALUES["own"])
        assert found.found.p == pytest.approx(expected.pvalue)
        assert found.p == pytest.approx(ours[name].p)
        assert found.found.difference == pytest.approx(-ours[name].found.difference)
    assert [c.verdict for c in theirs.values()] == ["worse", "within noise", "better"]
    less = gains(VALUES, "own", higher=False)
    assert [c.verdict for c in less.values()] == ["better", "within noise", "worse"]


def test_less_is_better_where_it_is_said():
    found = contrasts(VALUES, "own", higher=False)
    assert [c.verdict for c in found.values()] == ["worse", "within noise", "better"]


@pytest.mark.parametrize("pairs", [1, 2])
def test_fewer_than_three_pairs_tell_nothing(pairs):
    found = contrasts({name: values[:pairs] for name, values in VALUES.items()}, "own")
    assert {c.verdict for c in found.values()} == {"not tested"}
    assert ("(" in found["low"].text()) == (pairs > 1)
    three = contrasts({name: values[:3] for name, values in VALUES.items()}, "own")
    assert three["low"].verdict == "better"


def test_a_method_is_ranked_by_its_mean():
    found = rank(VALUES, "own")
    assert found is not None
    assert (found.of, found.best, found.best_mean) == (4, "high", np.mean(VALUES["high"]))
    assert found.place == 1 + sum(np.mean(v) > found.own_mean for v in VALUES.values())
