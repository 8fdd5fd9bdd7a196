"""Training pairs with negatives drawn anew in every epoch, and chunks of users to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import lightning
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from coterie.core.data.negatives import sample_negatives
from coterie.core.models.batches import Pairs, RankingBatch, Triples
from coterie.core.ragged import Ragged
from coterie.core.seeding import Key

Objective = Literal["pointwise", "pairwise"]


class EpochBatches(IterableDataset[Pairs | Triples]):
    """Whole batches of one epoch: pairs drawn and shuffled at once, then cut.

    What an epoch holds is a function of (key, epoch, rows), so a resumed run sees the same pairs.

    Args:
        users: ``(C,)`` int64, the user of every row.
        train: C rows of positive items, n in all.
        n_items: number of items.
        key: of all draws.
        negatives: negatives for each positive.
        batch_size: pairs a batch (pointwise: positives and negatives are a pair each).
        objective: "pointwise" yields `Pairs`, "pairwise" yields `Triples`.
        known: C rows of items that are never drawn as negatives; default ``train``.
        epoch: asked at the start of each iteration for the number of the epoch.

    Raises:
        ValueError: there is no positive, or a number is out of range.
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
        known: Ragged | None = None,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        _check_rows(users, train=train, known=known)
        if not train.values.numel():
            raise ValueError("there is no training interaction to draw pairs from")
        least = 0 if objective == "pointwise" else 1
        if negatives < least or batch_size < 1:
            raise ValueError(
                f"{objective} training needs negatives >= {least} and batch_size >= 1, "
                f"got {negatives} and {batch_size}"
            )
        self.users, self.train, self.n_items, self.key = users, train, n_items, key
        self.negatives, self.batch_size, self.objective = negatives, batch_size, objective
        self.known = train if known is None else known
        self.epoch = epoch

    def __len__(self) -> int:
        per_positive = self.negatives + (self.objective == "pointwise")
        return -(-self.train.values.numel() * per_positive // self.batch_size)

    def __iter__(self) -> Iterator[Pairs | Triples]:
        pairs = self.draw(self.epoch())
        for index in torch.arange(len(pairs.user)).split(self.batch_size):
            yield pairs.take(index)

    def draw(self, epoch: int) -> Pairs | Triples:
        """All pairs of an epoch, shuffled."""
        key = self.key.fold("epoch", epoch)
        user, item = self.users[self.train.rows], self.train.values
        negative = sample_negatives(
            key.fold("negatives"), self.train, self.n_items, self.negatives, self.known
        )
        repeated = user.repeat_interleave(self.negatives)
        pairs: Pairs | Triples
        if self.objective == "pairwise":
            pairs = Triples(repeated, item.repeat_interleave(self.negatives), negative)
        else:
            label = torch.cat([torch.ones(item.numel()), torch.zeros(negative.numel())])
            pairs = Pairs(torch.cat([user, repeated]), torch.cat([item, negative]), label)
        count = torch.arange(len(pairs.user))
        return pairs.take(torch.argsort(key.fold("shuffle").bits(count)))


class RankingChunks:
    """Chunks of the users who have a target, to rank all items for.

    Args:
        users: ``(C,)`` int64, the user of every row.
        excluded: C rows of items left out of the ranking.
        targets: C rows of items to find.
        chunk_size: users a chunk; bounds the memory of a score table.
    """

    def __init__(self, users: Tensor, excluded: Ragged, targets: Ragged, chunk_size: int) -> None:
        _check_rows(users, excluded=excluded, targets=targets)
        self.users, self.excluded, self.targets = users, excluded, targets
        self.chunks = (targets.lengths > 0).nonzero()[:, 0].split(chunk_size)

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[RankingBatch]:
        for rows in self.chunks:
            yield RankingBatch(self.users[rows], self.excluded.take(rows), self.targets.take(rows))


class PairsDataModule(lightning.LightningDataModule):
    """Users' splits as batches for `Central`: of all users, or of one for a local model.

    In validation the train items are left out of the ranking, in a test also those of validation.

    Args:
        users: ``(C,)`` int64, the user of every row; ``tensor([0])`` for a local model.
        train: C rows of items.
        valid: C rows of items.
        test: C rows of items.
        n_items: number of items.
        key: of all draws.
        negatives: negatives for each positive.
        batch_size: pairs a batch.
        objective: "pointwise" (labelled pairs) or "pairwise" (positive and negative together).
        known: C rows of items that are never drawn as negatives; default ``train``.
        chunk_size: users ranked at a time.
    """

    def __init__(
        self,
        users: Tensor,
        train: Ragged,
        valid: Ragged,
        test: Ragged,
        n_items: int,
        key: Key,
        negatives: int = 4,
        batch_size: int = 512,
        objective: Objective = "pointwise",
        known: Ragged | None = None,
        chunk_size: int = 1024,
    ) -> None:
        super().__init__()
        _check_rows(users, train=train, valid=valid, test=test)
        self.users, self.train, self.valid, self.test = users, train, valid, test
        self.chunk_size = chunk_size
        self.batches = EpochBatches(
            users, train, n_items, key, negatives, batch_size, objective, known, self._epoch
        )

    def train_dataloader(self) -> EpochBatches:
        """Batches of the trainer's current epoch."""
        return self.batches

    def val_dataloader(self) -> RankingChunks:
        """Users with validation items."""
        return RankingChunks(self.users, self.train, self.valid, self.chunk_size)

    def test_dataloader(self) -> RankingChunks:
        """Users with test items."""
        excluded = _join(self.train, self.valid)
        return RankingChunks(self.users, excluded, self.test, self.chunk_size)

    def _epoch(self) -> int:
        return self.trainer.current_epoch if self.trainer is not None else 0


def _join(first: Ragged, second: Ragged) -> Ragged:
    rows, values = torch.cat([first.rows, second.rows]), torch.cat([first.values, second.values])
    return Ragged.from_pairs(rows, values, len(first))


def _check_rows(users: Tensor, **parts: Ragged | None) -> None:
    for name, part in parts.items():
        if part is not None and len(part) != users.numel():
            raise ValueError(f"{name} has {len(part)} rows for {users.numel()} users")
