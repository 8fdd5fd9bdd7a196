"""Comparisons of methods against scipy's paired test and Holm's steps written out."""

import numpy as np
import pytest
from scipy import stats

from coterie.continual.tables.main_table import _star
from coterie.continual.tables.study import OWN, over_others, over_users, sentence, validations
from coterie.core.tables.paired import contrasts
from coterie.core.tables.result import RunResult

RNG = np.random.default_rng(0)
SEEDS, USERS = 6, 40


def results(shift):
    """Runs whose test gains ``shift`` and whose validation loses it."""
    return [
        RunResult(
            {
                "test/average/ndcg@20": 0.1 + shift + noise[0],
                "valid/average/ndcg@20": 0.1 - shift + noise[1],
            },
            {"block1/ndcg": (0.1 + shift + RNG.normal(0, 0.01, USERS)).tolist()},
        )
        for noise in RNG.normal(0, 0.001, (SEEDS, 2))
    ]


FIRST = results(0.01)
OTHERS = {"ft": results(0.0), "kd": results(0.0095), "reg": results(0.02)}
RESULTS = {"f3crec": FIRST, **OTHERS}


def over_others_on_validation():
    return contrasts({name: validations(runs, "ndcg@20") for name, runs in RESULTS.items()}, OWN)


def values(runs, name):
    return [run.metrics[name] for run in runs]


@pytest.mark.parametrize(
    ("compared", "metric"),
    [
        (lambda: over_others(RESULTS, "ndcg@20"), "test/average/ndcg@20"),
        (lambda: over_others_on_validation(), "valid/average/ndcg@20"),
    ],
)
def test_contrasts_are_paired_t_tests_adjusted_one_after_the_other(compared, metric):
    found = compared()
    p = {
        name: stats.ttest_rel(values(FIRST, metric), values(runs, metric)).pvalue
        for name, runs in OTHERS.items()
    }
    adjusted, floor = {}, 0.0
    for left, name in zip((3, 2, 1), sorted(p, key=p.get), strict=True):
        floor = adjusted[name] = max(floor, min(1.0, left * p[name]))
    for name, contrast in found.items():
        difference = np.mean(values(FIRST, metric)) - np.mean(values(OTHERS[name], metric))
        assert contrast.found.difference == pytest.approx(difference)
        assert contrast.found.p == pytest.approx(p[name])
        assert contrast.p == pytest.approx(adjusted[name])


@pytest.mark.parametrize(("seeds", "star"), [(2, ""), (3, "*")])
def test_a_star_needs_three_seeds(seeds, star):
    """However small the p of two."""
    other = contrasts({"f3crec": [0.3, 0.3, 0.3][:seeds], "ft": [0.1, 0.1001, 0.1][:seeds]}, OWN)
    assert other["ft"].found.p < 0.05
    assert _star(other["ft"]) == star


def test_validation_and_test_are_not_mixed_up():
    test, valid = over_others(RESULTS, "ndcg@20"), over_others_on_validation()
    assert (test["ft"].verdict, valid["ft"].verdict) == ("better", "worse")
    assert (test["reg"].verdict, valid["reg"].verdict) == ("worse", "better")
    users = over_users(RESULTS, "ft", "ndcg@20")
    assert (users.n, round(users.difference, 2)) == (USERS, 0.01)
    assert f"over {USERS} users" in sentence(test["ft"], "N@20", users)
    assert sentence(valid["ft"], "N@20").startswith("N@20: F³CRec - FT = -0.01")
    assert "users" not in sentence(valid["ft"], "N@20")
