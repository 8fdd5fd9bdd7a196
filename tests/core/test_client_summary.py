"""Summaries over clients against numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.metrics.clients import imbalance, worst_decile

VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(0, 1)), max_size=50)


@given(VALUES, st.booleans())
def test_worst_decile_equals_numpy(values: list[float], higher_is_better: bool) -> None:
    found = worst_decile(torch.tensor(values, dtype=torch.float64), higher_is_better)
    known = np.sort([value for value in values if not math.isnan(value)])
    if not len(known):
        assert math.isnan(found)
        return
    n_worst = -(-len(known) // 10)
    worst = known[:n_worst] if higher_is_better else known[-n_worst:]
    assert found == pytest.approx(np.mean(worst), abs=1e-12)


def test_float32_is_summed_in_float64() -> None:
    found = worst_decile(torch.full((1_000_000,), 0.1, dtype=torch.float32))
    assert found == pytest.approx(float(np.float32(0.1)), abs=1e-12)


@pytest.mark.parametrize(
    ("best", "worst", "degree"),
    [(0.0338, 0.0144, 1.35), (0.0235, 0.0085, 1.76), (0.0211, 0.0136, 0.55), (0.0047, 0.0001, 46)],
)
def test_imbalance_equals_the_published_degrees(best: float, worst: float, degree: float) -> None:
    values = torch.tensor([worst, (best + worst) / 2, best], dtype=torch.float64)
    assert round(imbalance(values), 2) == degree


def test_imbalance_at_its_edges() -> None:
    assert math.isnan(imbalance(torch.zeros(3)))  # nobody finds anything: not equal, but unknown
    assert imbalance(torch.tensor([0.0, 0.2])) == math.inf
    assert imbalance(torch.tensor([0.3, math.nan])) == 0.0
    assert math.isnan(imbalance(torch.tensor([])))
    with pytest.raises(ValueError, match="non-negative"):
        imbalance(torch.tensor([-0.1, 0.2]))
