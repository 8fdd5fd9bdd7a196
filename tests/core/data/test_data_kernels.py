"""Compiled loops draw what tensor operations draw, bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.data.interactions import negatives
from coterie.core.data.interactions import negatives as places
from coterie.core.data.interactions.negatives import distinct_places, sample_negatives
from coterie.core.kernels import switch
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


@pytest.fixture(autouse=True)
def _from_the_first_draw_on(monkeypatch):
    monkeypatch.setattr(switch, "ENOUGH", 0)


def both(draw):
    """What is drawn with kernels, equal to what is drawn without."""
    compiled = draw()
    with switch.kernels(False):
        plain = draw()
    assert compiled.dtype == plain.dtype
    assert torch.equal(compiled, plain)
    return compiled


@st.composite
def consumed(draw):
    """A catalogue of 1 to 40 items and what some clients had, up to all or nothing of it."""
    n_items = draw(st.integers(1, 40))
    row = st.lists(st.integers(0, n_items - 1), unique=True)
    everything = st.just(list(range(n_items)))
    return n_items, draw(st.lists(row | everything, max_size=6))


@given(consumed(), st.integers(0, 5), st.integers(0, 2**40), st.booleans())
def test_negatives(case, per_positive, seed, masked):
    n_items, rows = case
    key = Key.from_seed(seed).fold(torch.arange(len(rows)) * 3)
    positives = Ragged.from_lists(rows)
    known = positives.mask(n_items).flip(1) if masked else None
    drawn = both(lambda: sample_negatives(key, positives, n_items, per_positive, known))
    assert drawn.numel() == per_positive * positives.values.numel()


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0, 0, 1, 7, 300])), max_size=6),
    st.integers(0, 2**40),
)
def test_places(clients, seed):
    key = Key.from_seed(seed).fold(torch.arange(len(clients)))
    lengths = torch.tensor([n for n, _ in clients], dtype=torch.int64)
    elements = Ragged.from_lengths(torch.zeros(int(lengths.sum()), dtype=torch.int64), lengths)
    sizes = lengths + torch.tensor([more for _, more in clients], dtype=torch.int64)
    place = both(lambda: distinct_places(key, elements, sizes))
    assert place.unique().numel() == place.numel()


def test_few_attempts(monkeypatch):
    """Nearly all is picked by number, and dealt."""
    monkeypatch.setattr(negatives, "NEGATIVE_ATTEMPTS", 1)
    monkeypatch.setattr(places, "PLACE_ATTEMPTS", 1)
    key, rows = Key.from_seed(1).fold(torch.arange(2)), Ragged.from_lists([range(90), range(5)])
    both(lambda: sample_negatives(key, rows, 100, 7))
    both(lambda: distinct_places(key, rows, torch.tensor([90, 6])))


def test_few_numbers_are_drawn_without(monkeypatch):
    monkeypatch.setattr(switch, "ENOUGH", 100)
    monkeypatch.setattr(switch, "loaded", lambda: False)
    assert [switch.worthwhile(n) for n in (99, 100)] == [False, True]
    with switch.kernels(False):
        assert not switch.worthwhile(100)
        assert not switch.available()
    assert switch.available()
