"""Random shares of clients' samples, and all samples pooled."""

import pytest
import torch

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import divide, pooled, share_counts
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(5)
LENGTHS = [5, 0, 1, 12, 7]


def numbered(lengths=LENGTHS) -> SampleData:
    """Every sample is its own number."""
    parts = torch.arange(sum(lengths)).split(lengths)
    return SampleData.from_clients([{"x": part} for part in parts])


def of(data, c):
    return data.take(torch.tensor([c])).samples["x"].tolist()


def test_both_parts_make_the_whole():
    data = numbered()
    counts = torch.tensor([2, 0, 1, 5, 7])
    first, rest = divide(data, counts, KEY.fold(data.ids))
    assert torch.equal(first.lengths, counts)
    for c in range(len(LENGTHS)):
        assert sorted(of(first, c) + of(rest, c)) == of(data, c)


def test_a_chunk_divides_as_the_whole_does():
    data = numbered()
    counts = share_counts(data.lengths, 0.5)
    whole, _ = divide(data, counts, KEY.fold(data.ids))
    for c in range(len(LENGTHS)):
        one = data.take(torch.tensor([c]))
        alone, _ = divide(one, counts[[c]], KEY.fold(one.ids))
        assert of(alone, 0) == of(whole, c)


def test_every_sample_is_as_likely():
    """3,000 clients draw 3 of 10; each place has the expectation 900, standard deviation 25."""
    data = SampleData.from_clients([{"x": torch.arange(10)}] * 3000)
    first, _ = divide(data, torch.full((3000,), 3), KEY.fold(data.ids))
    counts = torch.bincount(first.samples["x"], minlength=10)
    assert bool(((counts - 900).abs() < 5 * 25.1).all())


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.8, [4, 0, 1, 10, 6]), (0.01, [1, 0, 1, 1, 1]), (1.0, LENGTHS), (0.29, [1, 0, 1, 3, 2])],
)
def test_shares_round_and_are_never_empty(share, expected):
    assert share_counts(torch.tensor(LENGTHS), share).tolist() == expected


def test_pooled_is_one_client():
    data = pooled(numbered())
    assert (data.ids.tolist(), data.offsets.tolist()) == ([0], [0, 25])
    assert data.samples["x"].tolist() == list(range(25))
