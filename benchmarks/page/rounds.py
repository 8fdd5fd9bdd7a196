"""The engine's side of the benchmark: single rounds of a method, and one from the same start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.modules.loops import Batch, ClientLoop
from coterie.core.data.samples.samples import MASK
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.experiment import Experiment
from coterie.page.settings import Settings

_NEVER = 1 << 30  # rounds without an evaluation
_WARM_ROUNDS = 2


class Rounds:
    """A federation whose rounds are run one at a time, without evaluation."""

    def __init__(self, settings: Settings) -> None:
        # A game at rest would end the turns.
        never = ("rounds", "train.evaluate_every", "game.patience")
        self.experiment = Experiment(changed(settings, dict.fromkeys(never, _NEVER)))
        self.module = FederatedRun(self.experiment.federation())
        self.client: Any = self.module.federation.client
        self.advance = self.module.advance


class FedAvgRounds(Rounds):
    """Rounds of FedAvg from models that have moved a little.

    Args:
        settings: of a run.
        closed_form: softmax regression's gradients in closed form; false = by `torch.func`, as
            those of any module.
    """

    def __init__(self, settings: Settings, closed_form: bool = True) -> None:
        super().__init__(replace(settings, method="fedavg"))
        if not closed_form:
            self.client.local.slope = None
        for _ in range(_WARM_ROUNDS):
            self.advance()

    @property
    def clients(self) -> SplitSamples:
        """What the clients hold."""
        return self.experiment.task.clients

    @property
    def weights(self) -> dict[str, Tensor]:
        """The server's model."""
        weights: dict[str, Tensor] = self.module.server_state.weights
        return weights

    @property
    def closed_form(self) -> bool:
        """Whether the gradients are in closed form."""
        return self.client.local.slope is not None

    def loop(self, count: int) -> ClientLoop:
        """Give the first clients to the plain loop."""
        return ClientLoop(self.experiment.build(), self.client.settings, self._first(count).train)

    def largest_difference(self, count: int) -> float:
        """Train the first clients here and in the loop on the same batches; compare their means."""
        data = self._first(count)
        key = Key.from_seed(0).fold("same batches").fold(data.ids)
        private = tree.take(self.module.store.take(self.clients.ids), torch.arange(count))
        up, _ = self.client.update(GlobalModel(self.weights), private, data, key)
        drawn = self.client.local.batches(data.train, key)

        def batches(client: int) -> Iterable[Batch]:
            row = torch.tensor([client])
            for number in range(int(drawn.steps[client])):
                yield _without_padding(drawn(number, row))

        reference = self.loop(count).round(self.weights, batches)
        ours = [self.weights[name] + change.mean(0) for name, change in up.change.items()]
        pairs = zip(ours, reference, strict=True)
        return max(float((one - other).abs().max()) for one, other in pairs)

    def _first(self, count: int) -> SplitSamples:
        return self.clients.take(torch.arange(count))


def local_steps(rounds: FedAvgRounds) -> int:
    """SGD steps of a round, summed over clients."""
    return int(rounds.client.work(rounds.clients).sum())


def _without_padding(batch: Batch) -> Batch:
    mask = batch.pop(MASK, None)
    alone = {name: values[0] for name, values in batch.items()}
    return alone if mask is None else {name: values[mask[0]] for name, values in alone.items()}
