"""Samples of some clients: those of a list of all, as views where the clients are adjacent."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.data.samples.samples import SampleData
from coterie.core.tensors.ordering import adjacent


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=7), st.data())
def test_taken_clients_have_their_samples(sizes, draws):
    first = draws.draw(st.integers(0, len(sizes)))
    run = list(range(first, draws.draw(st.integers(first, len(sizes)))))
    some = draws.draw(st.permutations(range(len(sizes))))
    numbers = torch.arange(float(sum(sizes))).split(sizes)
    data = SampleData.from_clients([{"x": own, "y": own.long()} for own in numbers])
    for index in (run, some, [index for index in some if index % 2]):
        taken = data.take(torch.tensor(index, dtype=torch.int64))
        assert taken.ids.tolist() == index
        assert taken.lengths.tolist() == [sizes[client] for client in index]
        expected = [number for client in index for number in numbers[client].tolist()]
        assert taken.samples["x"].tolist() == taken.samples["y"].tolist() == expected


@pytest.mark.parametrize(("index", "views"), [([1, 2], True), ([2, 1], False), ([0, 2], False)])
def test_adjacent_clients_are_not_copied(index, views):
    data = SampleData.from_clients([{"x": torch.ones(2)}] * 4)
    taken = data.take(torch.tensor(index)).samples["x"]
    inside = taken.untyped_storage().data_ptr() == data.samples["x"].untyped_storage().data_ptr()
    assert inside == views


@given(st.lists(st.integers(-3, 3), max_size=5))
def test_adjacent_is_one_more_each_time(places):
    expected = bool(places) and all(b - a == 1 for a, b in pairwise(places))
    assert adjacent(torch.tensor(places, dtype=torch.int64)) == expected
