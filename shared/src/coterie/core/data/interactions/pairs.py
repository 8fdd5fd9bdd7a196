"""Training pairs with negatives drawn anew in every epoch, and chunks of users to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from coterie.core.data.interactions.negatives import sample_negatives
from coterie.core.models.batches import Pairs, RankingBatch, Triples
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

Objective = Literal["pointwise", "pairwise"]

_CHUNK = 1024


class EpochBatches(IterableDataset[Pairs | Triples]):
    """Whole batches of one epoch: pairs drawn and shuffled at once, then cut.

    What an epoch holds is a function of (key, epoch, users, rows), so a resumed run sees the same
    pairs. A user who has every item has no negatives: their positives stay in "pointwise" batches
    and drop out of "pairwise" ones.

    Args:
        users: ``(C,)`` int64, the user of every row.
        train: C rows of positive items, n in all.
        n_items: number of items.
        key: of all draws.
        negatives: negatives for each positive.
        batch_size: pairs a batch (pointwise: positives and negatives are a pair each).
        objective: "pointwise" yields `Pairs`, "pairwise" yields `Triples`.
        epoch: asked at the start of each iteration for the number of the epoch.

    Raises:
        ValueError: there is no pair to train on, or a number is out of range.
    """

    def __init__(
        self,
        users: Tensor,
        train: Ragged,
        n_items: int,
        key: Key,
        negatives: int = 4,
        batch_size: int = 512,
        objective: Objective = "pointwise",
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        _check_rows(users, train=train)
        items = train.values
        if items.numel() and not 0 <= int(items.min()) <= int(items.max()) < n_items:
            raise ValueError(f"train has an item outside 0..{n_items - 1}")
        least = 0 if objective == "pointwise" else 1
        if negatives < least or batch_size < 1:
            raise ValueError(
                f"{objective} training needs negatives >= {least} and batch_size >= 1, "
                f"got {negatives} and {batch_size}"
            )
        self.users, self.train, self.n_items, self.key = users, train, n_items, key
        self.negatives, self.batch_size, self.objective = negatives, batch_size, objective
        self.epoch = epoch
        self.open_rows = _rows_with_free_items(train, n_items)
        self.n_pairs = int(train.lengths[self.open_rows].sum()) * negatives
        self.n_pairs += train.values.numel() if objective == "pointwise" else 0
        if not self.n_pairs:
            raise ValueError("there is no pair to train on: no interaction, or no free item")

    def __len__(self) -> int:
        return -(-self.n_pairs // self.batch_size)

    def __iter__(self) -> Iterator[Pairs | Triples]:
        pairs = self.draw(self.epoch())
        for index in torch.arange(self.n_pairs).split(self.batch_size):
            yield type(pairs)(*(part[index] for part in pairs))

    def draw(self, epoch: int) -> Pairs | Triples:
        """All pairs of an epoch, shuffled."""
        key = self.key.fold("epoch", epoch)
        order = torch.argsort(key.fold("shuffle").bits(torch.arange(self.n_pairs)))
        negative = self._negatives(key.fold("negatives"))
        drawn = self.train.take(self.open_rows)
        user = self.users[self.open_rows][drawn.rows].repeat_interleave(self.negatives)
        if self.objective == "pairwise":
            positive = drawn.values.repeat_interleave(self.negatives)
            return Triples(user[order], positive[order], negative[order])
        label = torch.zeros(self.n_pairs)
        label[: self.train.values.numel()] = 1.0
        users = torch.cat([self.users[self.train.rows], user])
        items = torch.cat([self.train.values, negative])
        return Pairs(users[order], items[order], label[order])

    def _negatives(self, key: Key) -> Tensor:
        if not self.negatives:
            return torch.empty(0, dtype=torch.int64)
        # The mask of items to leave out is dense, so it is made for a chunk of rows at a time.
        chunks = [
            (key.fold(self.users[r]), self.train.take(r)) for r in self.open_rows.split(_CHUNK)
        ]
        return torch.cat([sample_negatives(*rows, self.n_items, self.negatives) for rows in chunks])


class RankingChunks:
    """Chunks of the users who have a target, to rank all items for.

    Args:
        users: ``(C,)`` int64, the user of every row.
        excluded: C rows of items left out of the ranking.
        targets: C rows of items to find.
        chunk_size: users a chunk; bounds the memory of a score table.

    Raises:
        ValueError: the numbers of rows differ, or ``chunk_size`` is below 1.
    """

    def __init__(self, users: Tensor, excluded: Ragged, targets: Ragged, chunk_size: int) -> None:
        _check_rows(users, excluded=excluded, targets=targets)
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        self.users, self.excluded, self.targets = users, excluded, targets
        chunks = (targets.lengths > 0).nonzero()[:, 0].split(chunk_size)
        self.chunks = [rows for rows in chunks if rows.numel()]  # no users split into one chunk

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[RankingBatch]:
        for rows in self.chunks:
            yield RankingBatch(self.users[rows], self.excluded.take(rows), self.targets.take(rows))


def _check_rows(users: Tensor, **parts: Ragged) -> None:
    for name, part in parts.items():
        if len(part) != users.numel():
            raise ValueError(f"{name} has {len(part)} rows for {users.numel()} users")


def _rows_with_free_items(train: Ragged, n_items: int) -> Tensor:
    """Rows that do not hold every item, ``(K,)`` int64 ascending; repeated items count once."""
    distinct = torch.unique(train.rows * n_items + train.values)
    count = torch.bincount(distinct // n_items, minlength=len(train))
    return (count < n_items).nonzero()[:, 0]
