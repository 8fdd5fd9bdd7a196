"""The mean over clients: how uploads are summed, and what a server makes of the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.local_training.fit import Params
from coterie.core.protocol.folds import Sum
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.replies import FoldedReplies
from coterie.core.tensors import tree


class Trained(Protocol):
    """An upload of a trained model, such as `ModelUpdate`."""

    @property
    def change(self) -> Params:
        """Change of the model's parameters."""

    @property
    def samples(self) -> Tensor:
        """Number of samples n_k, ``(C,)`` int64."""

    @property
    def loss(self) -> Tensor:
        """Mean training loss, ``(C,)``."""


M = TypeVar("M", bound=Trained)


@dataclass(frozen=True)
class WeightedSum(Generic[M]):
    """Sums over clients with data.

    Attributes:
        sums: the message of which every field is the weighted sum over the clients.
        weight: ``()`` int64, sum of the weights.
    """

    sums: M
    weight: Tensor


class Weighted:
    """Fold of uploads of trained models: `WeightedSum`.

    Args:
        by: "samples" weighs a client by n_k, "equal" by 1.
    """

    def __init__(self, by: str) -> None:
        self._by = by

    def add(self, total: WeightedSum[M] | None, up: M) -> WeightedSum[M]:
        """Add a chunk's uploads to the running sums (None at first)."""
        weight = up.samples if self._by == "samples" else (up.samples > 0).long()
        chunk = WeightedSum(Sum(lambda update: weight).add(None, up), weight.sum())
        return chunk if total is None else tree.map_tensors(torch.add, total, chunk)


def mean_added(weights: Params, total: WeightedSum[Any]) -> Params:
    """Add the mean change to the model.

    Args:
        weights: w.
        total: what `Weighted` gives.
    """
    change = total.sums.change
    return {name: w + change[name] / total.weight for name, w in weights.items()}


def noted(replies: FoldedReplies[WeightedSum[M]], journal: Journal) -> WeightedSum[M] | None:
    """Note the clients of a round and their mean loss, and give the sums over them.

    Args:
        replies: to an ask that was reduced by `Weighted`.
        journal: of the round.

    Returns:
        What `Weighted` gives; None where no client with data answered.
    """
    journal.scalar("fed/clients", len(replies))
    total = replies.total
    if total is None or not total.weight > 0:
        return None
    journal.scalar("fed/loss", total.sums.loss / total.weight)
    return total
