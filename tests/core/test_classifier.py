"""Classifiers: which class counts as the answer."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from coterie.core.models.classifier import SoftmaxRegression, first_best

SCORES = st.lists(st.integers(-5, 5), min_size=1, max_size=6)


@given(SCORES, st.floats(1e-3, 1e3), st.integers(0, 2**31), st.sampled_from(["float32", "float64"]))
def test_equal_scores_are_equal_whatever_rounding_does(scores, scale, seed, name):
    """Python's index of the maximum of whole numbers, also after errors of a few roundings."""
    dtype, expected = getattr(torch, name), scores.index(max(scores))
    exact = torch.tensor([scores], dtype=dtype) * scale
    error = torch.rand(exact.shape, generator=torch.Generator().manual_seed(seed)) - 0.5
    size = 32 * torch.finfo(dtype).eps * float(exact.abs().max())
    assert first_best(exact).item() == expected
    assert first_best(exact + size * error.to(dtype)).item() == expected


def test_scores_that_differ_are_told_apart():
    scores = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(first_best(scores), scores.argmax(-1))
    assert torch.equal(vmap(first_best)(scores.view(10, 100, 7)).flatten(), scores.argmax(-1))


@pytest.mark.parametrize(
    "row", [[-math.inf, 3.0, 1.0], [0.0, math.inf, 1.0], [-math.inf] * 3, [1.0, math.nan, 2.0]]
)
def test_what_is_not_finite_is_ranked_as_torch_ranks_it(row):
    scores = torch.tensor([row])
    assert first_best(scores).item() == scores.argmax(-1).item()


@pytest.mark.parametrize("label", [0, 1, 2])
def test_a_model_that_knows_nothing_says_the_first_class(label):
    batch = {"x": torch.ones(2, 4), "y": torch.full((2,), label)}
    assert SoftmaxRegression(4, 3).correct(batch).tolist() == [label == 0] * 2
