"""The mean over clients: how uploads are summed, and what a server makes of the sums."""

from __future__ import annotations

from typing import Any

import torch

from coterie.core.federation.cohort import Replies
from coterie.core.federation.folds import Sum
from coterie.core.federation.journal import Journal
from coterie.core.local_training.fit import Params
from coterie.core.methods.kit.model_client import ModelUpdate
from coterie.core.tensors import tree


class Weighted:
    """Fold of `ModelUpdate`: weighted sums over clients with data, and the sum of the weights.

    Args:
        by: "samples" weighs a client by n_k, "equal" by 1.
    """

    def __init__(self, by: str) -> None:
        self._by = by

    def add(self, total: Any, up: ModelUpdate) -> dict[str, Any]:
        """Add a chunk's uploads to the running sums (None at first)."""
        weight = up.samples if self._by == "samples" else (up.samples > 0).long()
        chunk = Sum(lambda update: weight).add(None, up)
        chunk["weight"] = weight.sum()
        return chunk if total is None else tree.map_tensors(torch.add, total, chunk)


def mean_added(weights: Params, total: dict[str, Any]) -> Params:
    """Add the mean change to the model.

    Args:
        weights: w.
        total: what `Weighted` gives.
    """
    change, weight = total["change"], total["weight"]
    return {name: w + change[name] / weight for name, w in weights.items()}


def noted(replies: Replies, journal: Journal) -> dict[str, Any] | None:
    """Note the clients of a round and their mean loss, and give the sums over them.

    Args:
        replies: to an ask that was reduced by `Weighted`.
        journal: of the round.

    Returns:
        What `Weighted` gives; None where no client with data answered.
    """
    journal.scalar("fed/clients", replies.ids.numel())
    total: dict[str, Any] | None = replies.total
    if total is None or not total["weight"] > 0:
        return None
    journal.scalar("fed/loss", total["loss"] / total["weight"])
    return total
