"""Batches that the recommenders' losses take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class Pairs:
    """Labelled (user, item) pairs, for pointwise losses."""

    user: Tensor  # (B,) int64
    item: Tensor  # (B,) int64
    label: Tensor  # (B,) float, 1 for a positive, 0 for a negative

    def to(self, device: torch.device | str, **options: Any) -> Pairs:
        """Copy to a device (the hook by which Lightning moves batches)."""
        return Pairs(
            self.user.to(device, **options),
            self.item.to(device, **options),
            self.label.to(device, **options),
        )

    def take(self, index: Tensor) -> Pairs:
        """Pairs ``index``, ``(K,)`` int64, in that order."""
        return Pairs(self.user[index], self.item[index], self.label[index])


@dataclass(frozen=True)
class Triples:
    """A positive and a negative item of the same user, for pairwise losses."""

    user: Tensor  # (B,) int64
    positive: Tensor  # (B,) int64
    negative: Tensor  # (B,) int64

    def to(self, device: torch.device | str, **options: Any) -> Triples:
        """Copy to a device (the hook by which Lightning moves batches)."""
        return Triples(
            self.user.to(device, **options),
            self.positive.to(device, **options),
            self.negative.to(device, **options),
        )

    def take(self, index: Tensor) -> Triples:
        """Triples ``index``, ``(K,)`` int64, in that order."""
        return Triples(self.user[index], self.positive[index], self.negative[index])


@dataclass(frozen=True)
class RankingBatch:
    """Users to rank all items for."""

    user: Tensor  # (C,) int64
    excluded: Ragged  # C rows of items left out of the ranking
    targets: Ragged  # C rows of items to find

    def to(self, device: torch.device | str, **options: Any) -> RankingBatch:
        """Copy the users to a device; the rows stay on the CPU, where ranks are counted."""
        return RankingBatch(self.user.to(device, **options), self.excluded, self.targets)
