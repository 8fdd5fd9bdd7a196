"""The loss of a module as clients may train it: stacked, taped, recorded, or one by one.

What is trained is ``loss(batch)`` as a plain loop would. Whether a faster way gives the same is
tried on clients' samples, once, and again when the module has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from torch import nn

from coterie.core.data.samples.samples import SampleData, Samples
from coterie.core.errors import UserError
from coterie.core.local_training.agreement import (
    DIFFERENT,
    Remembered,
    agree,
    by_factors,
    depends,
    pieces,
    side_by_side,
)
from coterie.core.local_training.alone import (
    drawing,
    mixes_samples,
    row_sparse,
    statistics_of,
    trained_alone,
)
from coterie.core.local_training.losses import (
    AsBatch,
    Batch,
    MethodOf,
    Slope,
    masked,
    of_trained,
    scalar,
)
from coterie.core.local_training.probing import Habits, check_layers, first_batch
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.stacking import runs_beside_others

_PIECES = 4
"""Of the samples, by which a loss is compared again when an attribute of its module has changed."""
_TRIED = 8
"""Clients on whose samples a loss is tried before it is taken to have no value."""
_ONE_BY_ONE = (
    "a method that trains clients one by one (fedavg, fedprox, ditto, fedamp, local, central)"
)


class TrainableLoss:
    """The loss of a module, and how it may be trained.

    Args:
        module: gives the form of the model by ``loss(batch)``, one number of a batch's samples. Its
            values do not matter, but those of buffers and of parameters without gradient do: they
            are constants. With a method ``slope(params, batch)`` it may give gradients and losses
            of stacked clients itself, see `coterie.core.local_training.losses.Slope`. Dropout in a
            stack is `coterie.core.local_training.dropout.KeyedDropout`. What the loss reads beside
            tensors, such as attributes that a callback changes, is read anew in every round; a loss
            that changes attributes itself is trained one client after the other as well.
        batch_size: of the steps; None = all samples of a client.
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

    derived = ("_plain", "_factored", "loss", "why_not", "_slope_differs", "_tried", "_looking")

    def __init__(
        self,
        module: nn.Module,
        batch_size: int | None,
        as_batch: AsBatch | None = None,
        *,
        admits_alone: bool = False,
    ) -> None:
        check_layers(module)
        if not callable(getattr(module, "loss", None)):
            raise UserError(
                f"{type(module).__name__} has no method loss(batch), which is what is trained"
            )
        self.alone = trained_alone(module)
        if self.alone and not admits_alone:
            _refuse(module)
        self._module, self._as_batch, self._admits = module, as_batch, admits_alone
        self.slope: Slope | None = getattr(module, "slope", None)
        self._batch_size = batch_size
        self._habits = Habits(module, as_batch, True if self.alone else None, draws=self.alone)
        self.why_not = Remembered(self._disagreement)
        self._slope_differs = Remembered(self._slope_disagreement)
        self._tried, self._looking = 0, threading.Lock()
        self._made()

    def _made(self) -> None:
        """Make the loss, of the module as it is now."""
        mode, live = True if self.alone else None, self.in_order
        name, method = type(self._module).__name__, self._module
        self._plain = scalar(MethodOf(method, "loss", mode, self._as_batch, live=live), name)
        self._factored: bool | None = None
        self.loss = drawing(self._plain) if self.alone else masked(self._plain)

    @property
    def recording(self) -> bool:
        """Whether steps may be recorded (`coterie.core.local_training.recorded`)."""
        return self._habits.watchable and not self.in_order

    @property
    def factored(self) -> bool:
        """Whether linear layers may be taped (`coterie.core.local_training.linear_layers`)."""
        return bool(self._factored)

    @property
    def in_order(self) -> bool:
        """Whether clients are trained in their order, as the loss changes its module."""
        return self._habits.changing is not None

    def look(self, data: Samples) -> None:
        """Take note of what the module reads now, and the first time of what it does.

        Raises:
            UserError: what it does cannot be trained, or not by this method.
        """
        with self._looking:  # whoever comes meanwhile trains what is made of it
            self._look(data)

    def _look(self, data: Samples) -> None:
        if self.slope is not None:
            if isinstance(data, SampleData) and (why := self._slope_differs(data)):
                raise UserError(why)
            return
        if self._habits.look(data, self._batch_size):
            self._made()
            self.why_not.clear()
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
        if self.in_order:
            return f"the loss changes {self._habits.changing}"
        form, plain, least = self._form(), self._plain, self._batch_size or 1
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
        size, seen = self._batch_size, list[Batch]()
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
        found = pieces(data.samples, self._batch_size or 1, form)
        why = agree(self._plain, of_trained(self.slope), form, found, padded=not data.alike)
        if why not in DIFFERENT:
            return None
        return (
            f"{type(self._module).__name__}.slope does not give the gradients and values of its "
            "loss: write one that does, or set 'slope = None' in the class"
        )


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
