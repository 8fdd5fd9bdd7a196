"""Paired comparisons against scipy and against the procedure's definition."""

import math

import numpy as np
import pytest
from scipy import stats

from coterie.core.tables import paired


def test_the_paired_test_is_scipys():
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=12), draw.normal(0.3, size=12)
    found = paired.compare(a, b)
    expected = stats.ttest_rel(a, b)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-12)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert found.difference == pytest.approx(np.mean(a) - np.mean(b))


def test_pairs_without_a_value_are_left_out_and_nothing_is_tested_on_one():
    a, b = [0.1, math.nan, 0.3, 0.5], [0.2, 0.2, math.nan, 0.1]
    assert paired.compare(a, b).n == 2
    assert math.isnan(paired.compare([0.1], [0.2]).p)
    assert math.isnan(paired.compare([], []).difference)
    assert paired.compare([1.0, 2.0], [1.0, 2.0]).p == 1.0
    with pytest.raises(ValueError, match="shapes"):
        paired.compare([1.0], [1.0, 2.0])


def test_holm_is_the_step_down_procedure():
    p = [0.01, 0.2, 0.02, 0.9, 0.013]
    adjusted = paired.holm(p)
    # A hypothesis is rejected at level a exactly when it and all smaller ones pass a / (m - i).
    for level in np.linspace(0.001, 0.999, 500):
        rejected = set()
        for place, i in enumerate(sorted(range(5), key=p.__getitem__)):
            if p[i] > level / (5 - place):
                break
            rejected.add(i)
        assert rejected == {i for i in range(5) if adjusted[i] <= level}
    assert math.isnan(paired.holm([math.nan, 0.5])[0])
    assert paired.holm([math.nan, 0.5])[1] == 0.5
