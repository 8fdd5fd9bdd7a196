"""Batches that the recommenders' losses take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.tensors.ragged import Ragged


class Pairs(NamedTuple):
    """Labelled (user, item) pairs, for pointwise losses."""

    user: Tensor  # (B,) int64
    item: Tensor  # (B,) int64
    label: Tensor  # (B,) float, 1 for a positive, 0 for a negative


class Triples(NamedTuple):
    """A positive and a negative item of the same user, for pairwise losses."""

    user: Tensor  # (B,) int64
    positive: Tensor  # (B,) int64
    negative: Tensor  # (B,) int64


@dataclass(frozen=True)
class RankingBatch:
    """Users to rank all items for."""

    user: Tensor  # (C,) int64
    excluded: Ragged  # C rows of items left out of the ranking
    targets: Ragged  # C rows of items to find

    def to(self, device: torch.device | str, **options: Any) -> RankingBatch:
        """Copy the users to a device; the rows stay on the CPU, where ranks are counted."""
        return RankingBatch(self.user.to(device, **options), self.excluded, self.targets)
