"""Action maps cover their whole range; those of the public code do not, as reported."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.agents.action_maps import Integers, Logarithmic, Simplex
from coterie.core.tensors.keys import Key

GRID = torch.linspace(-1, 1, 20001, dtype=torch.float64)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
ends = st.tuples(st.floats(1e-6, 1e3), st.floats(1.001, 1e6)).map(lambda x: (x[0], x[0] * x[1]))


def covers(image: torch.Tensor, low: float, high: float, gap: float) -> bool:
    """Whether a sorted image fills [low, high] without a hole beyond ``gap`` of its length."""
    reached = torch.cat([image.new_tensor([low]), image, image.new_tensor([high])])
    inside = bool((reached.min() == reached[0]) & (reached.max() == reached[-1]))
    return inside and bool(reached.diff().max() <= gap * (high - low))


@given(ends)
def test_logarithmic_covers_its_range_in_logarithms(end: tuple[float, float]) -> None:
    low, high = end
    image = Logarithmic(low, high)(GRID)
    assert image.min() >= low
    assert image.max() <= high
    assert covers(
        image.log().clamp(math.log(low), math.log(high)), math.log(low), math.log(high), 1.1e-4
    )
    assert image[10000].item() == pytest.approx(math.sqrt(low) * math.sqrt(high))


@given(st.integers(-5, 5), st.integers(0, 200))
def test_integers_are_equally_likely_and_all_reached(low: int, more: int) -> None:
    image = Integers(low, low + more)(GRID)
    values, counts = image.unique(return_counts=True)
    assert values.tolist() == list(range(low, low + more + 1))
    assert image.dtype == torch.int64
    assert (counts - GRID.numel() / (more + 1)).abs().max() <= 2


@dtypes
def test_ends_are_exact(dtype: torch.dtype) -> None:
    raw = torch.tensor([-1.0, 1.0], dtype=dtype)
    expected = torch.tensor([1e-3, 0.1], dtype=dtype)
    assert torch.allclose(Logarithmic(1e-3, 0.1)(raw), expected, rtol=1e-6, atol=0)
    assert Integers(1, 20)(raw).tolist() == [1, 20]


@given(
    st.integers(2, 200), st.floats(0.6, 0.999), st.integers(0, 2**31), st.sampled_from([0.1, 1, 9])
)
def test_simplex_reaches_every_weighting_within_its_ratio(
    width: int, peak: float, seed: int, power: float
) -> None:
    simplex = Simplex(width, peak)
    draws = Key.from_seed(seed).uniform(width, dtype=torch.float64)
    logits = draws**power * 2 * simplex.scale
    weights = torch.softmax(logits, 0)  # largest ratio at most exp(2 scale)
    raw = weights.log() / simplex.scale
    raw = raw - (raw.max() + raw.min()) / 2
    assert raw.abs().max() <= 1 + 1e-9
    assert torch.allclose(simplex(raw), weights, rtol=1e-9)


@given(st.integers(2, 1000), st.floats(0.6, 0.999))
def test_simplex_reaches_uniform_and_its_peak(width: int, peak: float) -> None:
    simplex = Simplex(width, peak)
    one = torch.full((width,), -1.0, dtype=torch.float64)
    one[width // 2] = 1
    assert simplex(one).max().item() == pytest.approx(peak)
    assert simplex(one).sum().item() == pytest.approx(1)
    assert torch.allclose(simplex(torch.zeros(width)), torch.tensor(1 / width))
    assert torch.allclose(simplex(torch.ones(width)), torch.tensor(1 / width))


def test_simplex_follows_a_permutation_and_a_single_weight_is_one() -> None:
    raw = 2 * Key.from_seed(0).uniform(9) - 1
    order = torch.tensor([3, 8, 0, 5, 1, 7, 2, 6, 4])
    assert torch.allclose(Simplex(9)(raw[order]), Simplex(9)(raw)[order])
    assert Simplex(1)(torch.tensor([[0.3]])).tolist() == [[1.0]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Logarithmic(1, 1),
        lambda: Logarithmic(1, math.inf),
        lambda: Logarithmic(math.nan, 1),
        lambda: Logarithmic(0, 1),
        lambda: Logarithmic(-1, 1),
        lambda: Integers(2, 1),
        lambda: Simplex(0),
        lambda: Simplex(4, peak=0.25),
        lambda: Simplex(4, peak=1.0),
    ],
)
def test_empty_ranges_are_refused(make: object) -> None:
    with pytest.raises(ValueError):
        make()
