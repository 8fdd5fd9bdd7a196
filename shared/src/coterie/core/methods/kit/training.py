"""Local training of a chunk of clients: what nearly all methods do between two messages."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from functools import partial
from typing import Any

from torch import Tensor, nn

from coterie.core.data.samples.samples import CountedBatches, SampleData, Samples, batch_counts
from coterie.core.errors import UserError
from coterie.core.local_training.agreement import (
    DIFFERENT,
    Remembered,
    Stackable,
    agree,
    by_factors,
    depends,
    pieces,
    side_by_side,
)
from coterie.core.local_training.alone import (
    SeededBatches,
    check_enough,
    drawing,
    mixes_samples,
    row_sparse,
    statistics_of,
    trained_alone,
)
from coterie.core.local_training.dropout import DropoutBatches, keyed_layers
from coterie.core.local_training.fit import Fitted, fit
from coterie.core.local_training.losses import (
    AsBatch,
    Batch,
    MethodOf,
    Pull,
    Slope,
    masked,
    of_trained,
    scalar,
)
from coterie.core.local_training.probing import Habits, check_layers, first_batch
from coterie.core.local_training.row_optimizer import (
    Params,
    RowAdam,
    RowOptimizer,
    RowSGD,
    RowState,
)
from coterie.core.local_training.stacking import StackWidth, runs_beside_others, say_one_by_one
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.keys import Key

_PIECES = 4
"""Of the samples, by which a loss is compared again when an attribute of its module has changed."""
_TRIED = 8
"""Clients on whose samples a loss is tried before it is taken to have no value."""
_ONE_BY_ONE = (
    "a method that trains clients one by one (fedavg, fedprox, ditto, fedamp, local, central)"
)


class LocalTraining:
    """E epochs of mini-batches in every client, by a method's settings.

    What is trained is ``loss(batch)`` as a plain loop would. Clients are stacked where that gives
    it (`coterie.core.local_training.agreement`), which is tried once, else one after the other.

    Args:
        module: gives the form of the model by ``loss(batch)``, one number of a batch's samples. Its
            values do not matter, but those of buffers and of parameters without gradient do: they
            are constants. With a method ``slope(params, batch)`` it may give gradients and losses
            of stacked clients itself, see `coterie.core.local_training.losses.Slope`. Dropout in a
            stack is `coterie.core.local_training.dropout.KeyedDropout`. What the loss reads beside
            tensors, such as attributes that a callback changes, is read anew in every round; a loss
            that changes attributes itself is trained one client after the other as well.
        settings: epochs, batch size, optimizer, learning rate, weight decay, clipping.
        as_batch: makes of what ``module.loss`` takes of a dict of samples; None = the dict itself.
        admits_alone: whether the method can train one client after the other where a stack is
            impossible (`coterie.core.local_training.alone`): it keeps the statistics of each.

    Attributes:
        alone: whether it does.
        loss: of one client.
        slope: the module's own, if it has one.

    Raises:
        UserError: the module has batch normalisation, torch's dropout or sparse gradients, and the
            method cannot train clients one by one; or lazy layers, ``max_norm``, or layers of keyed
            dropout of one name.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: FedAvgSettings,
        as_batch: AsBatch | None = None,
        *,
        admits_alone: bool = False,
    ) -> None:
        check_layers(module)
        if not callable(getattr(module, "loss", None)):
            raise UserError(
                f"{type(module).__name__} has no method loss(batch), which is what is trained"
            )
        self.settings = settings
        self.alone = trained_alone(module)
        if self.alone and not admits_alone:
            _refuse(module)
        self._module, self._as_batch, self._admits = module, as_batch, admits_alone
        self._mixes = mixes_samples(module)
        self.slope: Slope | None = getattr(module, "slope", None)
        self.optimizer = optimizer_of(settings)
        self._stack = StackWidth.of(module)
        self._habits = Habits(module, as_batch, True if self.alone else None, draws=self.alone)
        self._why_not = Remembered(self._disagreement)
        self._slope_differs = Remembered(self._slope_disagreement)
        self._tried, self._looking = 0, threading.Lock()
        self._made()

    def _made(self) -> None:
        """Make the loss, of the module as it is now."""
        mode, live = True if self.alone else None, self._habits.changing is not None
        name, method = type(self._module).__name__, self._module
        self._plain = scalar(MethodOf(method, "loss", mode, self._as_batch, live=live), name)
        self._factored: bool | None = None
        self.loss = drawing(self._plain) if self.alone else masked(self._plain)

    @property
    def recording(self) -> bool:
        """Whether steps may be recorded (`coterie.core.local_training.recorded`)."""
        return self._habits.watchable and self._habits.changing is None

    @property
    def factored(self) -> bool:
        """Whether linear layers may be taped (`coterie.core.local_training.linear_layers`)."""
        return bool(self._factored)

    def batches(
        self, data: Samples, key: Key, epochs: int | Tensor | None = None
    ) -> CountedBatches:
        """Shuffle and cut the samples of each client; ``epochs`` is E or ``(C,)`` of them.

        Raises:
            UserError: a batch would have a single sample, and the module has batch normalisation;
                or the module's loss is none (`coterie.core.local_training.probing`).
        """
        self.check(data)
        with self._looking:  # whoever comes meanwhile trains what is made of it
            self._look(data)
        batches = cut(self._module, self.settings, data, key, epochs)
        if self.alone or self.slope is not None or not isinstance(data, SampleData):
            return batches
        return Stackable(batches, partial(self._why_not, data))

    def _look(self, data: Samples) -> None:
        """Take note of what the module reads now, and the first time of what it does.

        Raises:
            UserError: what it does cannot be trained, or not by this method.
        """
        if self.slope is not None:
            if isinstance(data, SampleData) and (why := self._slope_differs(data)):
                raise UserError(why)
            return
        if self._habits.look(data, self.settings.batch_size):
            self._made()
            self._why_not.clear()
        changing = self._habits.changing
        if changing is None and self._factored is None:
            self._factored = self._by_factors(data.whole if isinstance(data, SampleData) else data)
        if changing is None or (self._admits and not runs_beside_others()):
            return
        remedy = "leave 'engine.workers' at 1"
        if not self._admits:
            remedy = f"let something else change it, or use {_ONE_BY_ONE}"
        raise UserError(
            f"{type(self._module).__name__}.loss changes {changing}, so clients must be trained in "
            f"their order: {remedy}"
        )

    def _form(self, without: Collection[int] = ()) -> Params:
        named = self._module.named_parameters()
        return {n: v.detach() for n, v in named if v.requires_grad and id(v) not in without}

    def _disagreement(self, data: SampleData) -> str | None:
        """What speaks against training the clients of some samples side by side."""
        if self._habits.changing is not None:
            return f"the loss changes {self._habits.changing}"
        form, plain, least = self._form(), self._plain, self.settings.batch_size or 1
        most = None if not self._tried else _PIECES  # again: an attribute has changed
        self._tried += 1
        found = pieces(data.samples, least, form, most)
        gradient = side_by_side(plain, self.factored)
        return agree(plain, gradient, form, found, padded=not data.alike)

    def _by_factors(self, data: Samples) -> bool | None:
        """Whether layers may be taped, tried on clients with many samples; None = not known.

        Raises:
            UserError: the loss depends on nothing that is trained.
        """
        tables = {id(part.weight) for part in self._module.modules() if row_sparse(part)}
        kept, form = statistics_of(self._module), self._form(without=tables)
        if not form:
            return True
        size, seen = self.settings.batch_size, list[Batch]()
        for client in data.lengths.argsort(descending=True, stable=True)[:_TRIED].split(1):
            if batch := first_batch(data, client, size):
                if (same := by_factors(self._plain, form, kept, batch, self.alone)) is not None:
                    return same
                seen.append(batch)
        if seen and not any(depends(self._plain, form, batch, self.alone) for batch in seen):
            raise UserError(
                f"{type(self._module).__name__}.loss depends on no parameter of the module, so "
                "there is nothing to train: compute it with gradients, of what the module gives"
            )
        return None

    def _slope_disagreement(self, data: SampleData) -> str | None:
        """What is wrong with a module's own slope, as a class has that inherits it."""
        assert self.slope is not None
        form = self._form()
        found = pieces(data.samples, self.settings.batch_size or 1, form)
        why = agree(self._plain, of_trained(self.slope), form, found, padded=not data.alike)
        if why not in DIFFERENT:
            return None
        return (
            f"{type(self._module).__name__}.slope does not give the gradients and values of its "
            "loss: write one that does, or set 'slope = None' in the class"
        )

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
        if self._habits.changing is not None:
            return 0  # in their order
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
