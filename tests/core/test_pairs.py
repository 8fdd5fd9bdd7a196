"""Epochs of training pairs and chunks of users to rank for."""

import time

import pytest
import torch
from scipy.stats import chisquare

from coterie.core.data.interactions.negatives import EpochBatches, RankingChunks
from coterie.core.models.recommender import Triples
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

KEY = Key.from_seed(1)
USERS = torch.tensor([7, 3, 9])
TRAIN = Ragged.from_lists([[0, 1, 2], [4], [3, 0]])
HAS = {7: {0, 1, 2}, 3: {4}, 9: {3, 0}}


def rows_of(batches: EpochBatches) -> list[tuple]:
    """All pairs of an iteration as tuples, in order."""
    parts = [tuple(batch) for batch in batches]
    return [pair for part in parts for pair in zip(*(x.tolist() for x in part), strict=True)]


def test_an_epoch_holds_every_positive_once_and_its_negatives() -> None:
    rows = rows_of(EpochBatches(USERS, TRAIN, 6, KEY, negatives=3, batch_size=5))
    positives = sorted((user, item) for user, item, label in rows if label == 1)
    assert positives == sorted((user, item) for user, items in HAS.items() for item in items)
    negatives = [(user, item) for user, item, label in rows if label == 0]
    assert all(item not in HAS[user] and 0 <= item < 6 for user, item in negatives)
    count = {user: sum(u == user for u, _ in negatives) for user in HAS}
    assert count == {user: 3 * len(items) for user, items in HAS.items()}


def test_pairwise_epochs_hold_a_negative_for_each_positive() -> None:
    batches = EpochBatches(USERS, TRAIN, 6, KEY, 2, 4, "pairwise")
    rows = rows_of(batches)
    assert all(isinstance(batch, Triples) for batch in batches)
    expected = sorted((user, item) for user, items in HAS.items() for item in items for _ in "ab")
    assert sorted((user, item) for user, item, _ in rows) == expected
    assert all(negative not in HAS[user] for user, _, negative in rows)


@pytest.mark.parametrize("batch_size", [1, 4, 24, 25])
@pytest.mark.parametrize("objective", ["pointwise", "pairwise"])
def test_length_is_the_number_of_batches(batch_size: int, objective: str) -> None:
    batches = EpochBatches(USERS, TRAIN, 6, KEY, 3, batch_size, objective)
    sizes = [batch.user.numel() for batch in batches]
    assert len(sizes) == len(batches)
    assert set(sizes[:-1]) <= {batch_size}
    assert 1 <= sizes[-1] <= batch_size


def test_epochs_differ_and_repeat_by_number() -> None:
    number = 0
    batches = EpochBatches(USERS, TRAIN, 50, KEY, epoch=lambda: number)
    first, again = rows_of(batches), rows_of(batches)
    number = 1
    assert first == again
    assert sorted(first) != sorted(rows_of(batches))


def test_batch_size_does_not_change_the_pairs() -> None:
    epochs = [rows_of(EpochBatches(USERS, TRAIN, 6, KEY, 2, size)) for size in (1, 4, 100)]
    assert epochs[0] == epochs[1] == epochs[2]


def test_negatives_of_a_user_do_not_depend_on_the_others() -> None:
    whole = rows_of(EpochBatches(USERS, TRAIN, 50, KEY))
    rows = torch.tensor([1])
    alone = rows_of(EpochBatches(USERS[rows], TRAIN.take(rows), 50, KEY))
    assert sorted(alone) == sorted(row for row in whole if row[0] == 3)


def test_negatives_are_uniform_over_free_items() -> None:
    train = Ragged.from_lists([[0, 5]])
    epochs = EpochBatches(torch.tensor([0]), train, 10, KEY, negatives=2000)
    drawn = torch.bincount(
        torch.tensor([item for _, item, label in rows_of(epochs) if label == 0]), minlength=10
    )
    assert drawn[[0, 5]].sum() == 0
    assert chisquare(drawn[[1, 2, 3, 4, 6, 7, 8, 9]].numpy()).pvalue > 1e-3


def test_a_user_with_every_item_has_positives_only() -> None:
    users, train = torch.tensor([0, 1]), Ragged.from_lists([[0, 1, 2], [1]])
    pointwise = EpochBatches(users, train, 3, KEY, 2)
    rows = rows_of(pointwise)
    assert len(rows) == pointwise.n_pairs == 4 + 2
    assert all(label == 1 for user, _, label in rows if user == 0)
    assert {row[0] for row in rows_of(EpochBatches(users, train, 3, KEY, 2, 9, "pairwise"))} == {1}


def test_pointwise_without_negatives() -> None:
    rows = rows_of(EpochBatches(USERS, TRAIN, 6, KEY, negatives=0))
    assert [label for _, _, label in rows] == [1.0] * 6


@pytest.mark.parametrize(
    ("users", "train", "options", "message"),
    [
        ([0, 1], [[0]], {}, "train has 1 rows for 2 users"),
        ([0], [[]], {}, "no pair to train on"),
        ([0], [[0, 1, 2]], {"objective": "pairwise"}, "no pair to train on"),
        ([0], [[3]], {}, "train has an item outside 0..2"),
        ([0], [[-1]], {}, "train has an item outside 0..2"),
        ([0], [[0]], {"batch_size": 0}, "batch_size >= 1"),
        ([0], [[0]], {"negatives": -1}, "negatives >= 0"),
        ([0], [[0]], {"negatives": 0, "objective": "pairwise"}, "negatives >= 1"),
    ],
)
def test_impossible_input_is_refused(users, train, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        EpochBatches(torch.tensor(users), Ragged.from_lists(train), 3, KEY, **options)


@pytest.mark.parametrize("chunk_size", [1, 2, 50])
def test_ranking_chunks_hold_the_users_with_targets(chunk_size: int) -> None:
    targets = Ragged.from_lists([[5], [], [1, 2]])
    chunks = RankingChunks(USERS, TRAIN, targets, chunk_size)
    batches = list(chunks)
    assert len(batches) == len(chunks)
    assert torch.cat([batch.user for batch in batches]).tolist() == [7, 9]
    assert [row for batch in batches for row in batch.targets.tolists()] == [[5], [1, 2]]
    assert [row for batch in batches for row in batch.excluded.tolists()] == [[0, 1, 2], [3, 0]]


def test_ranking_chunks_refuse_a_chunk_of_nobody() -> None:
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        RankingChunks(USERS, TRAIN, TRAIN, 0)
    assert len(RankingChunks(USERS, TRAIN, Ragged.from_lists([[], [], []]), 5)) == 0


def test_a_million_pairs_are_drawn_in_bulk() -> None:
    """200,000 positives of 5,000 users: the draw costs seconds only if it loops over users."""
    item = KEY.integers(3000, torch.arange(200_000))
    train = Ragged.from_pairs(torch.arange(200_000) % 5000, item, 5000)
    batches = EpochBatches(torch.arange(5000), train, 3000, KEY)
    start = time.perf_counter()
    assert batches.draw(0).user.numel() == 1_000_000
    assert time.perf_counter() - start < 3.0
