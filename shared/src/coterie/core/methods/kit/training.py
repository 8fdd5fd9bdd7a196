"""Local training of a chunk of clients: what nearly all methods do between two messages."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from torch import Tensor, nn

from coterie.core.data.samples.samples import CountedBatches, SampleData, Samples, batch_counts
from coterie.core.local_training.agreement import Stackable
from coterie.core.local_training.alone import (
    SeededBatches,
    check_enough,
    mixes_samples,
    trained_alone,
)
from coterie.core.local_training.dropout import DropoutBatches, keyed_layers
from coterie.core.local_training.fit import Fitted, fit
from coterie.core.local_training.gradients import Pull
from coterie.core.local_training.losses import AsBatch
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import Params, RowOptimizer, RowSGD, RowState
from coterie.core.local_training.stacking import StackWidth, say_one_by_one
from coterie.core.local_training.trainable import TrainableLoss
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.keys import Key


class LocalTraining(TrainableLoss):
    """E epochs of mini-batches in every client, by a method's settings.

    What is trained is ``loss(batch)`` as a plain loop would. Clients are stacked where that gives
    it, else trained one after the other (`coterie.core.local_training.trainable`).

    Args:
        module: see `coterie.core.local_training.trainable.TrainableLoss`, as are the rest and what
            is raised.
        settings: epochs, batch size, optimizer, learning rate, weight decay, clipping.

    Attributes:
        logs: where steps log; `taken` gives all of it once, `add` more. None: they do not.
    """

    logs: Any = None

    def __init__(
        self,
        module: nn.Module,
        settings: FedAvgSettings,
        as_batch: AsBatch | None = None,
        *,
        admits_alone: bool = False,
    ) -> None:
        super().__init__(module, settings.batch_size, as_batch, admits_alone=admits_alone)
        self.settings = settings
        self.optimizer = optimizer_of(settings)
        self._mixes = mixes_samples(module)
        self._stack = StackWidth.of(module)

    def batches(
        self, data: Samples, key: Key, epochs: int | Tensor | None = None
    ) -> CountedBatches:
        """Shuffle and cut the samples of each client; ``epochs`` is E or ``(C,)`` of them.

        Raises:
            UserError: a batch would have a single sample, and the module has batch normalisation;
                or the module's loss is none (`coterie.core.local_training.probing`).
        """
        self.check(data)
        self.look(data)
        batches = cut(self._module, self.settings, data, key, epochs)
        if self.alone or self.slope is not None or not isinstance(data, SampleData):
            return batches
        return Stackable(batches, partial(self.why_not, data))

    def check(self, data: Samples) -> None:
        """Check that every batch has as many samples as the module needs.

        Raises:
            UserError: one would have a single sample, and the module has batch normalisation.
        """
        if self._mixes:
            check_enough(data.lengths, data.ids, self.settings.batch_size)

    def steps(self, data: Samples) -> Tensor:
        """Local steps of each client in a round, ``(C,)`` int64."""
        least = 2 if self._mixes else 1
        return self.settings.epochs * batch_counts(data.lengths, self.settings.batch_size, least)

    def train(
        self,
        start: Params,
        batches: CountedBatches,
        *,
        lr: float | Tensor | None = None,
        pull: Pull | None = None,
        context: Any = None,
        fixed: Params | None = None,
        state: RowState | None = None,
        statistics: Params | None = None,
    ) -> Fitted:
        """Train C clients.

        Args:
            start: each ``(C, ...)``; with ``fixed``, the part of the model that is trained.
            batches: of the clients; their number is the number of steps.
            lr: learning rate, one for all or ``(C,)``; None = that of the settings.
            pull: what the method adds to the gradients, see `coterie.core.local_training.fit.fit`.
            context: stacked tree for ``pull``.
            fixed: the part of the model that stays, see `coterie.core.local_training.fit.fit`.
            state: of the optimizers, to go on from; None = a fresh start.
            statistics: of the module in each client, each ``(C, ...)``; empty where it keeps none.
        """
        first = next(iter(start.values()))
        return fit(
            self.loss,
            start,
            batches,
            self.optimizer,
            self.settings.lr if lr is None else lr,
            batches.steps,
            state=state,
            clip=self.settings.clip,
            slope=self.slope,
            pull=pull,
            context=context,
            fixed=fixed,
            statistics=(statistics or {}) if self.alone else None,
            width=self._width(batches, first.is_cpu) if self.slope is None else None,
            deferrable=self._stack.deferrable if self.factored and not self.alone else (),
            factored=self.factored,
            recording=self.recording,
        )

    def _width(self, batches: CountedBatches, cached: bool) -> int | None:
        """Clients side by side, by the samples of the longest."""
        if self.in_order:
            return 0
        size = self.settings.batch_size
        steps = int(batches.steps.max()) if len(batches.steps) else 0
        width = self._stack.choose(steps * size if size else sys.maxsize) if cached else None
        if width == 1 or len(batches.steps) < 2 or not isinstance(batches, Stackable):
            return width
        why = batches.why_not()
        if why is None:
            return width
        say_one_by_one(why)
        return 1


def cut(
    module: nn.Module,
    settings: FedAvgSettings,
    data: Samples,
    key: Key,
    epochs: int | Tensor | None = None,
) -> CountedBatches:
    """Shuffle and cut the samples of each client, with what the module draws by in each step.

    Args:
        module: is trained on them.
        settings: epochs and batch size.
        data: of C clients, each with enough for a batch.
        key: the clients' keys, ``(C,)``.
        epochs: local epochs, one for all or ``(C,)``; None = those of the settings.
    """
    alone, dropping = trained_alone(module), bool(keyed_layers(module))
    batches = data.batches(
        settings.epochs if epochs is None else epochs,
        settings.batch_size,
        key,
        by_place=alone or dropping,  # draws differ from place to place
        at_least=2 if mixes_samples(module) else 1,
    )
    if dropping:
        batches = DropoutBatches(batches, module, key)
    return SeededBatches(batches, key) if alone else batches


def optimizer_of(settings: FedAvgSettings) -> RowOptimizer:
    """The optimizer that settings name."""
    kinds: dict[str, type[RowOptimizer]] = {"sgd": RowSGD, "adam": RowAdam}
    return kinds[settings.optimizer](weight_decay=settings.weight_decay)


def same_for_all(weights: Params, n_clients: int) -> Params:
    """Give every client the same parameters, as a view: ``(...) -> (C, ...)``."""
    return {name: value.expand(n_clients, *value.shape) for name, value in weights.items()}


def changes(new: Params, old: Params) -> Params:
    """Subtract the server's parameters from the clients', ``(C, ...)``."""
    return {name: value - old[name] for name, value in new.items()}
