"""FedAvg: the server averages what its clients trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.federation.cohort import Cohort
from coterie.core.local_training.fit import Params
from coterie.core.methods.fedavg_client import FedAvgClient
from coterie.core.methods.model_client import GlobalModel, ModelUpdate
from coterie.core.methods.model_server import ModelServer, ServerModel, ServerSamples
from coterie.core.methods.settings import FedAvgSettings
from coterie.core.protocol.folds import Fold, Sum
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Down
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

S = TypeVar("S", bound=ServerModel)


class FedAvgServer(ModelServer[S]):
    """Server of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1)."""

    who_diverged: Callable[[Any], Tensor] | None = None
    """Says whose uploads are left out, see `coterie.core.federation.cohort.Cohort.ask`."""

    def round(self, state: S, cohort: Cohort, key: Key) -> S:
        """One round: ask the clients chosen for an update, then aggregate."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        down, fold = self.down(state), self.fold()
        replies = chosen.ask("update", down, reduce=fold, who_diverged=self.who_diverged)
        cohort.journal.scalar("fed/clients", replies.ids.numel())
        total = replies.total
        if total is not None and total["weight"] > 0:
            state = self.aggregate(state, total, len(cohort))
            self.note(cohort.journal, total)
        self.evaluate_if_due(state, cohort)
        return state

    def down(self, state: S) -> Down:
        """What the clients chosen receive."""
        return GlobalModel(state.weights)

    def fold(self) -> Fold:
        """How uploads are summed: the ``total`` that `aggregate` receives."""
        return Weighted(self.settings.weighting)

    def note(self, journal: Journal, total: dict[str, Any]) -> None:
        """Show the mean loss of a round.

        Args:
            journal: of the round.
            total: as `aggregate` has it.
        """
        journal.scalar("fed/loss", total["loss"] / total["weight"])

    def aggregate(self, state: S, total: dict[str, Any], n_clients: int) -> S:
        """Set w <- w + sum_k n_k (w_k - w) / sum_k n_k.

        Args:
            state: before the round.
            total: sums over the clients chosen, as `Weighted` makes them.
            n_clients: in the whole cohort.
        """
        return replace(state, weights=mean_added(state.weights, total))


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


__all__ = [
    "FedAvgClient",
    "FedAvgServer",
    "FedAvgSettings",
    "GlobalModel",
    "ModelUpdate",
    "ServerModel",
    "ServerSamples",
    "Weighted",
]
