"""Local training of a chunk of clients: what nearly all methods do between two messages."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from coterie.core.data.samples.samples import CountedBatches, Samples, batch_counts
from coterie.core.errors import UserError
from coterie.core.local_training.alone import (
    SeededBatches,
    check_enough,
    drawing,
    mixes_samples,
    row_sparse,
    trained_alone,
)
from coterie.core.local_training.dropout import DropoutBatches, keyed_layers
from coterie.core.local_training.fit import Fitted, fit
from coterie.core.local_training.losses import AsBatch, MethodOf, Pull, Slope, masked
from coterie.core.local_training.row_optimizer import (
    Params,
    RowAdam,
    RowOptimizer,
    RowSGD,
    RowState,
)
from coterie.core.local_training.width import StackWidth
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.keys import Key

_ONE_BY_ONE = (
    "a method that trains clients one by one (fedavg, fedprox, ditto, fedamp, local, central)"
)


class LocalTraining:
    """E epochs of mini-batches in every client, by a method's settings.

    Args:
        module: gives the form of the model by ``loss(batch)``, the mean over a batch's samples. Its
            values do not matter, but those of buffers and of parameters without gradient do: they
            are constants. With a method ``slope(params, batch)`` it may give gradients and losses
            of stacked clients itself, see `coterie.core.local_training.losses.Slope`. A stack of
            clients can be trained where the loss is of something that depends on one sample, and
            dropout is `coterie.core.local_training.dropout.KeyedDropout`.
        settings: epochs, batch size, optimizer, learning rate, weight decay, clipping.
        as_batch: makes of what ``module.loss`` takes of a dict of samples; None = the dict itself.
        admits_alone: whether the method can train one client after the other where a stack is
            impossible (`coterie.core.local_training.alone`): it keeps the statistics of each.

    Attributes:
        alone: whether it does.

    Raises:
        UserError: the module has batch normalisation, torch's dropout or sparse gradients, and the
            method cannot train clients one by one; or layers of keyed dropout of one name.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: FedAvgSettings,
        as_batch: AsBatch | None = None,
        *,
        admits_alone: bool = False,
    ) -> None:
        self.settings = settings
        self.alone = trained_alone(module)
        if self.alone and not admits_alone:
            _refuse(module)
        self._mixes = mixes_samples(module)
        self._dropping = module if keyed_layers(module) else None
        if self.alone:
            self.loss = drawing(MethodOf(module, "loss", True, as_batch))
        else:
            self.loss = masked(MethodOf(module, "loss", as_batch=as_batch))
        self.slope: Slope | None = getattr(module, "slope", None)
        self.optimizer = optimizer_of(settings)
        self._stack = StackWidth.of(module)

    def batches(
        self, data: Samples, key: Key, epochs: int | Tensor | None = None
    ) -> CountedBatches:
        """Shuffle and cut the samples of each client; ``epochs`` is E or ``(C,)`` of them.

        Raises:
            UserError: a batch would have a single sample, and the module has batch normalisation.
        """
        passes = self.settings.epochs if epochs is None else epochs
        size = self.settings.batch_size
        by_place = self.alone or self._dropping is not None  # draws differ from place to place
        self.check(data)
        least = 2 if self._mixes else 1
        batches = data.batches(passes, size, key, by_place=by_place, at_least=least)
        if self._dropping is not None:
            batches = DropoutBatches(batches, self._dropping, key)
        return SeededBatches(batches, key) if self.alone else batches

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
            width=self._width(batches) if first.is_cpu and self.slope is None else None,
            deferrable=() if self.alone else self._stack.deferrable,
        )

    def _width(self, batches: CountedBatches) -> int:
        """Clients side by side, by the samples of the longest."""
        size = self.settings.batch_size
        steps = int(batches.steps.max()) if len(batches.steps) else 0
        return self._stack.choose(steps * size if size else sys.maxsize)


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


def towards(strength: float | Tensor) -> Pull:
    """Pull of μ/2 ‖w - v‖² towards the context v, each of its tensors ``(C, ...)``.

    Parameters that the context does not have, as those that are not shared, are not pulled.

    Example:
        >>> import torch
        >>> pull = towards(0.5)
        >>> pull({"w": torch.ones(1, 1)}, {"w": torch.zeros(1, 1)})["w"].item()
        0.5
    """
    return lambda params, context: {
        name: strength * (params[name] - near) for name, near in context.items()
    }


def _refuse(module: nn.Module) -> None:
    """Say which layer a stack of clients cannot have, and this method not train otherwise."""
    for name, part in module.named_modules():
        if mixes_samples(part) and not any(mixes_samples(child) for child in part.children()):
            raise UserError(
                f"'{name}' is batch normalisation, which mixes samples and keeps statistics: "
                f"use GroupNorm or LayerNorm, or {_ONE_BY_ONE}"
            )
        if row_sparse(part):
            raise UserError(
                f"'{name}' has sparse gradients, of which torch can make no stack: leave 'sparse' "
                f"out, or use {_ONE_BY_ONE}"
            )
    raise UserError(
        "torch's dropout draws for all clients at once: set dropout to 0, use "
        f"coterie.core.local_training.dropout.KeyedDropout, or {_ONE_BY_ONE}"
    )
