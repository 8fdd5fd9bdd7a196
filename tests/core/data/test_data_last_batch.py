"""A last batch of too few samples joins the one before: every sample once an epoch, none lost."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.data.samples.samples import MASK, MiniBatches, SampleData, batch_counts
from coterie.core.errors import UserError
from coterie.core.local_training.alone import check_enough
from coterie.core.tensors.keys import Key

LEAST = st.integers(1, 4)
SIZES = st.one_of(st.none(), st.integers(1, 6))


def numbered(lengths) -> SampleData:
    """Samples that are numbered through."""
    numbers = torch.arange(sum(lengths)).split(lengths)
    return SampleData.from_clients([{"number": one} for one in numbers])


def keys(data) -> Key:
    return Key.from_seed(5).fold(data.ids)


def cut(n, size, least) -> list[int]:
    """Sizes of the batches of one epoch, sample by sample."""
    if not n:
        return []
    parts, left = [], n
    while left:
        parts.append(min(left, size or n))
        left -= parts[-1]
    if len(parts) > 1 and parts[-1] < least:
        parts[-2:] = [parts[-2] + parts[-1]]
    return parts


def seen_alone(batches, rows):
    """What each client sees, one asked after the other: client -> batches of numbers."""
    return [
        [batches(b, torch.tensor([row]))["number"][0].tolist() for b in range(steps)]
        for row, steps in zip(rows, batches.steps[rows].tolist(), strict=True)
    ]


def seen_together(batches, n_clients):
    """The same, all who are still at work asked at once, by what the mask lets through."""
    found = [[] for _ in range(n_clients)]
    for number in range(int(batches.steps.max())):
        rows = (batches.steps > number).nonzero().flatten()
        batch = batches(number, rows)
        mask = batch.get(MASK, torch.ones_like(batch["number"], dtype=torch.bool))
        for row, values, counts in zip(rows.tolist(), batch["number"], mask, strict=True):
            found[row].append(values[counts].tolist())
    return found


@given(
    lengths=st.lists(st.integers(0, 14), min_size=1, max_size=5),
    size=SIZES,
    least=LEAST,
    epochs=st.integers(1, 2),
    by_place=st.booleans(),
)
def test_every_sample_once_an_epoch(lengths, size, least, epochs, by_place):
    data = numbered(lengths)
    batches = MiniBatches(data, epochs, size, keys(data), by_place=by_place, at_least=least)
    found = seen_together(batches, len(lengths))
    assert found == seen_alone(batches, range(len(lengths)))
    expected = [cut(n, size, least) for n in lengths]
    assert batches.per_epoch.tolist() == [len(parts) for parts in expected]
    assert batch_counts(data.lengths, size, least).tolist() == batches.per_epoch.tolist()
    for row, parts in enumerate(expected):
        own = data.samples["number"][data.offsets[row] : data.offsets[row + 1]].tolist()
        assert [len(one) for one in found[row]] == parts * epochs
        for epoch in range(epochs):
            here = found[row][epoch * len(parts) : (epoch + 1) * len(parts)]
            assert sorted(chain.from_iterable(here)) == own


@given(n=st.integers(1, 14), count=st.integers(1, 4), size=SIZES, least=LEAST)
def test_clients_alike_are_cut_as_others(n, count, size, least):
    """Equal lengths take a faster way; beside an empty client they take the other."""
    fast, slow = numbered([n] * count), numbered([n] * count + [0])
    assert (fast.alike, slow.alike) == (True, False)
    ways = [MiniBatches(data, 2, size, keys(data), at_least=least) for data in (fast, slow)]
    assert MASK not in ways[0](0, torch.arange(count))
    assert seen_together(ways[0], count) == seen_together(ways[1], count + 1)[:count]


@given(
    lengths=st.lists(st.integers(0, 14).filter(lambda n: n != 1), min_size=1, max_size=5),
    size=st.one_of(st.none(), st.integers(2, 6)),
)
def test_no_batch_of_one_is_left(lengths, size):
    data = numbered(lengths)
    check_enough(data.lengths, data.ids, size)
    batches = MiniBatches(data, 1, size, keys(data), at_least=2)
    for parts in seen_together(batches, len(lengths)):
        assert all(len(part) >= 2 for part in parts)


def test_nothing_changes_where_nothing_is_asked_for():
    data = numbered([9, 8, 1])
    plain, asked = (
        MiniBatches(data, 2, 4, keys(data)),
        MiniBatches(data, 2, 4, keys(data), at_least=1),
    )
    assert seen_together(plain, 3) == seen_together(asked, 3)
    assert plain.per_epoch.tolist() == [3, 2, 1]


def test_samples_give_the_batches_they_are_asked_for():
    data = numbered([9, 0, 5])
    found = data.batches(2, 4, keys(data), by_place=True, at_least=2)
    expected = MiniBatches(data, 2, 4, keys(data), by_place=True, at_least=2)
    assert seen_together(found, 3) == seen_together(expected, 3)
    assert found.per_epoch.tolist() == [2, 0, 1]
    assert data.sample_bytes() == 8


@pytest.mark.parametrize(
    ("lengths", "size", "why"),
    [
        ([3, 1, 0], 4, "client 1 has a single training sample, and batch normalisation needs 2"),
        ([3, 1, 0], None, "client 1 has a single training sample"),
        ([3, 2], 1, "batch normalisation needs batches of 2 samples or more"),
    ],
)
def test_what_has_no_variance_is_refused(lengths, size, why):
    data = numbered(lengths)
    with pytest.raises(UserError, match=why) as caught:
        check_enough(data.lengths, data.ids, size)
    assert "\n" not in str(caught.value)


def test_no_samples_are_enough():
    check_enough(torch.tensor([0, 0, 2]), torch.arange(3), 4)
