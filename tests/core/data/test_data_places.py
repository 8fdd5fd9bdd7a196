"""Random places: every way to place the elements is equally likely."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from coterie.core.data.interactions import negatives as module
from coterie.core.data.interactions.negatives import distinct_places
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

KEY = Key.from_seed(3).fold("places")


def ragged(lengths):
    lengths = torch.tensor(lengths, dtype=torch.int64)
    return Ragged.from_lengths(torch.zeros(int(lengths.sum()), dtype=torch.int64), lengths)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_places_are_distinct_and_do_not_depend_on_the_chunk(clients):
    lengths, sizes = [n for n, _ in clients], [n + more for n, more in clients]
    ids = torch.arange(len(clients)) * 5
    drawn = distinct_places(KEY.fold(ids), ragged(lengths), torch.tensor(sizes, dtype=torch.int64))
    assert drawn.numel() == sum(lengths)
    first = 0
    for c, part in enumerate(drawn.split(lengths) if clients else ()):
        assert len(set(part.tolist())) == lengths[c]
        assert all(first <= place < first + sizes[c] for place in part.tolist())
        key = KEY.fold(ids[c : c + 1])
        alone = distinct_places(key, ragged(lengths[c : c + 1]), torch.tensor(sizes[c : c + 1]))
        assert torch.equal(alone + first, part)
        first += sizes[c]


@pytest.mark.parametrize("attempts", [1, 2, 8])
@pytest.mark.parametrize(("n_elements", "n_places"), [(2, 5), (3, 4), (4, 4)])
def test_all_outcomes_are_equally_likely(monkeypatch, attempts, n_elements, n_places):
    """4,000 clients against all injections; with one attempt nearly all places are dealt."""
    monkeypatch.setattr(module, "PLACE_ATTEMPTS", attempts)
    count = 4000
    key = KEY.fold(torch.arange(count))
    drawn = distinct_places(key, ragged([n_elements] * count), torch.full((count,), n_places))
    drawn = drawn.reshape(count, n_elements) - torch.arange(count)[:, None] * n_places
    outcomes = {o: 0 for o in itertools.permutations(range(n_places), n_elements)}
    for row in drawn.tolist():
        outcomes[tuple(row)] += 1
    assert chisquare(list(outcomes.values())).pvalue > 1e-4


def test_rounds_place_differently():
    args = (ragged([50]), torch.tensor([1000]))
    a = distinct_places(KEY.fold(1).fold(torch.tensor([7])), *args)
    b = distinct_places(KEY.fold(2).fold(torch.tensor([7])), *args)
    assert int((a == b).sum()) < 5
