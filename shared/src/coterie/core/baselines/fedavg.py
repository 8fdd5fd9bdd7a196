"""FedAvg: the server averages what its clients trained, weighted by their numbers of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import tree
from coterie.core.aggregation import Sum
from coterie.core.baselines.fedavg_client import FedAvgClient, GlobalModel, ModelUpdate
from coterie.core.baselines.settings import FedAvgSettings
from coterie.core.cohort import Cohort
from coterie.core.errors import UserError
from coterie.core.seeding import Key
from coterie.core.server import Decision, Server


@dataclass(frozen=True)
class ServerModel:
    """State of the server.

    Attributes:
        weights: w, parameters by name.
    """

    weights: dict[str, Tensor]


class FedAvgServer(Server[ServerModel]):
    """Server of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1).

    Args:
        build: makes the module; its initial parameters are drawn under the server's key.
        settings: of the method.
    """

    def __init__(self, build: Callable[[], nn.Module], settings: FedAvgSettings) -> None:
        self.settings = settings
        self._build = build

    def begin(self, key: Key) -> ServerModel:
        """Draw the initial parameters.

        Raises:
            UserError: the module has nothing to train.
        """
        with key.torch_rng():
            module = self._build()
        named = module.named_parameters()
        weights = {name: w.detach().clone() for name, w in named if w.requires_grad}
        if not weights:
            raise UserError(f"{type(module).__name__} has no parameters to train")
        return ServerModel(weights)

    def start_block(self, state: ServerModel, block: int, cohort: Cohort, key: Key) -> ServerModel:
        """Enrol newcomers."""
        cohort.enrol()
        return state

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """One round: w <- w + sum_k n_k (w_k - w) / sum_k n_k over the clients chosen."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        replies = chosen.ask("update", GlobalModel(state.weights), reduce=BySamples())
        cohort.journal.scalar("fed/clients", replies.ids.numel())
        total = replies.total
        if total is not None and total["samples"] > 0:
            n = total["samples"]
            weights = {name: w + total["change"][name] / n for name, w in state.weights.items()}
            state = ServerModel(weights)
            cohort.journal.scalar("fed/loss", total["loss"] / n)
        every = self.settings.evaluate_every
        if every and cohort.when[-1] % every == 0:
            self.evaluate(state, cohort)
        return state

    def evaluate(self, state: ServerModel, cohort: Cohort) -> None:
        """Enter the loss on the cohort's data into its journal: ``eval/loss``, also a client."""
        report = cohort.ask("evaluate", GlobalModel(state.weights)).up
        if report is None:
            return
        measured = ~report.loss.isnan()
        loss, samples = report.loss[measured], report.samples[measured]
        if loss.numel():
            cohort.journal.scalar("eval/loss", (loss * samples).sum() / samples.sum())

    def stop(self, state: ServerModel, history: Sequence[dict[str, float]]) -> Decision:
        """End the block after T rounds."""
        return "block" if len(history) >= self.settings.rounds else "go"


class BySamples:
    """Fold of `ModelUpdate`: sums weighted by the numbers of samples, and their sum."""

    def add(self, total: Any, up: ModelUpdate) -> dict[str, Any]:
        """Add a chunk's uploads to the running sums (None at first)."""
        chunk = Sum(lambda update: update.samples).add(None, up)
        chunk["samples"] = up.samples.sum()
        return chunk if total is None else tree.map_tensors(torch.add, total, chunk)


__all__ = [
    "BySamples",
    "FedAvgClient",
    "FedAvgServer",
    "FedAvgSettings",
    "GlobalModel",
    "ModelUpdate",
    "ServerModel",
]
