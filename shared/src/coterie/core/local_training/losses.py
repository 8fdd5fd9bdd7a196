"""Losses as functions of one client's parameters, and their gradients for stacked clients."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import MASK
from coterie.core.errors import UserError
from coterie.core.local_training.embedding_rows import keep_padding_rows
from coterie.core.local_training.gradients import Grads
from coterie.core.local_training.linear_layers import (
    WITHHELD,
    Deferred,
    Outer,
    Tap,
    joined,
    tap_linear_layers,
    taped,
)
from coterie.core.local_training.recorded import recorded
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.stacking import drawing_nothing, or_unstackable, stacked
from coterie.core.tensors import tree
from coterie.core.tensors.device import brought

M = TypeVar("M", bound=nn.Module)

Batch = dict[str, Tensor]
Loss = Callable[[Params, Batch], Tensor]
AsBatch = Callable[[Batch], Any]
"""Makes of a dict of samples, ``name -> (B, ...)``, what the methods of a module take."""
Slope = Callable[[Params, Batch], tuple[Params, Tensor]]
"""Gradients, each ``(K, ...)``, and losses ``(K,)`` of K clients with stacked parameters."""


class MethodOf:
    """A method of a module, such as its loss, as a function of one client's parameters.

    What `torch.func.functional_call` does anew in every call, finding where each tensor stands and
    putting the module's own back, is done once: this works on a copy of the module. Its linear
    layers can be taped (`TappedLinear`), its embeddings know their padding when they are stacked
    (`PaddedEmbedding`).

    Args:
        module: has ``method(batch)``; parameters and buffers that a call does not name are its own.
        method: its name.
        training: whether the copy is in training mode; None = as the module is.
        as_batch: makes of the dict what the method takes; None = the dict itself.
        live: work on the module itself instead, whose attributes a call may change. Its tensors are
            put back after each call; one thread, and one client at a time, without stacks.

    Raises:
        UserError: the module cannot be copied.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> forward = MethodOf(layer, "forward", False, lambda batch: batch["x"])
        >>> forward({"weight": torch.tensor([[2.0]])}, {"x": torch.ones(1, 1)}).tolist()
        [[2.0]]
    """

    def __init__(
        self,
        module: nn.Module,
        method: str,
        training: bool | None = None,
        as_batch: AsBatch | None = None,
        *,
        live: bool = False,
    ) -> None:
        # Its own values are constants. They want no gradients: torch refuses to copy those in vmap.
        self._module = module if live else copied(module).requires_grad_(False)
        self._live, self._training = live, training
        if training is not None and not live:
            self._module.train(training)
        self._method, self._as_batch = method, as_batch
        self._of_thread = threading.local()  # threads would put each other's tensors in place

    def __call__(self, params: Params, batch: Batch) -> Any:
        """Call the method with parameters and buffers by name; buffers may be written to."""
        # A dict of its own, from which it may take away what it likes.
        given = dict(batch) if self._as_batch is None else self._as_batch(batch)
        if self._live:
            with _in_mode(self._module, self._training):
                return _Placed(self._module, self._method, tapped=False).call_once(params, given)
        placed: _Placed | None = getattr(self._of_thread, "placed", None)
        if placed is None:
            own = brought(copy.deepcopy(self._module))
            placed = self._of_thread.placed = _Placed(own, self._method)
        return placed.call(params, given)


class _Placed:
    """A module whose tensors can be put in their places."""

    def __init__(self, module: nn.Module, method: str, tapped: bool = True) -> None:
        self._method = getattr(module, method)
        self._places: list[tuple[str, Any, list[tuple[dict[str, Any], str]]]] = []
        names: dict[int, str] = {}  # a tensor in several places goes by the name of the first
        places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        for path, part in module.named_modules():
            for tensors in (part._parameters, part._buffers):
                for leaf, value in tensors.items():
                    name = names.setdefault(id(value), f"{path}.{leaf}".removeprefix("."))
                    places.setdefault(name, []).append((tensors, leaf))
        for name, where in places.items():
            tensors, leaf = where[0]
            self._places.append((name, tensors[leaf], where))
        if tapped:
            tap_linear_layers(module, names)
            keep_padding_rows(module)

    def call(self, params: Params, batch: Any) -> Any:
        for name, own, places in self._places:
            value = params.get(name, own)
            for tensors, leaf in places:
                tensors[leaf] = value
        return self._method(batch)

    def call_once(self, params: Params, batch: Any) -> Any:
        """Call it, and put the module's own tensors back."""
        try:
            return self.call(params, batch)
        finally:
            for _, own, places in self._places:
                for tensors, leaf in places:
                    tensors[leaf] = own


@contextmanager
def _in_mode(module: nn.Module, training: bool | None) -> Iterator[None]:
    """Put a module into training or evaluation mode, and back."""
    before = [(part, part.training) for part in module.modules()]
    if training is not None:
        module.train(training)
    try:
        yield
    finally:
        for part, mode in before if training is not None else ():
            part.training = mode


def copied(module: M) -> M:
    """Copy a module.

    Raises:
        UserError: it holds something that cannot be copied.
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise UserError(
            f"{type(module).__name__} cannot be copied, and every thread needs a copy: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}; make open "
            "files, locks and generators when they are needed, not in the module"
        ) from error


def scalar(loss: Loss, name: str) -> Loss:
    """Check that a loss is one number; a larger one would be broadcast against a mask.

    Args:
        loss: of one client.
        name: of the module, for errors.
    """

    def checked(params: Params, batch: Batch) -> Tensor:
        return one_number(loss(params, batch), name)

    return checked


def one_number(value: Any, name: str) -> Tensor:
    """Give what a module's loss gave, if that is one number.

    Raises:
        UserError: it is something else.
    """
    if isinstance(value, Tensor) and value.dim() == 0 and value.is_floating_point():
        return value
    raise UserError(
        f"{name}.loss(batch) gives {what_it_is(value)}: return one number, a "
        "floating-point tensor of shape (), such as the mean over the batch"
    )


def what_it_is(value: Any) -> str:
    """Name a value that should have been one number, by its type, shape and format.

    Example:
        >>> what_it_is(3), what_it_is(torch.zeros(2))
        ('a int', 'a tensor of shape (2,) and type float32')
    """
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    kind = str(value.dtype).removeprefix("torch.")
    return f"a tensor of shape {tuple(value.shape)} and type {kind}"


def masked(loss: Loss) -> Loss:
    """Make a loss obey a batch's mask.

    Args:
        loss: of one client; the mean over the samples of its batch of something that depends on
            one sample (`coterie.core.local_training.agreement` checks it). It need not know of
            masks.

    Returns:
        The loss over the samples that count. Batches without a mask go to ``loss`` itself.
    """

    def obeying(params: Params, batch: Batch) -> Tensor:
        if MASK not in batch:
            return loss(params, batch)
        samples = {name: value for name, value in batch.items() if name != MASK}
        mask = batch[MASK]
        values = per_sample(loss, params, samples)
        return torch.where(mask, values, 0.0).sum() / mask.sum()

    return obeying


def per_sample(loss: Loss, params: Params, samples: Batch) -> Tensor:
    """Losses ``(B,)`` of single samples: each is a batch of one."""
    alone = {name: value.unsqueeze(1) for name, value in samples.items()}
    return stacked(lambda sample: loss(params, sample))(alone)


# Gradients and losses of stacked clients, by the shortest way.

Parts = dict[str, tuple[Tensor, ...]]
Kept = Mapping[str, Deferred]
Gradient = Callable[[Params, Params, Batch, Kept], tuple[Grads, Tensor]]
"""From stacks of what is trained and what is given beside it: gradients of the first, losses."""


def of_trained(slope: Slope) -> Gradient:
    """Keep of a slope's gradients those of what is trained."""

    def call(params: Params, fixed: Params, batch: Batch, kept: Kept) -> tuple[Grads, Tensor]:
        grads, value = slope({**params, **fixed}, batch)
        return {name: grads[name] for name in params}, value

    return call


class ByAutograd:
    """Gradients of a loss of one client by plain autograd, around `torch.func.vmap` where several.

    Args:
        loss: of one client.
        factored: whether weights of linear layers may get `Outer` gradients.
        draws: whether the loss may draw from torch's generator; a stack of one client then.
        recording: whether a step that comes often may be recorded: nothing that the loss reads
            beside what it is given changes without another loss being made.
    """

    def __init__(
        self, loss: Loss, factored: bool, draws: bool = False, recording: bool = True
    ) -> None:
        self._factored, self._draws, self._recording = factored, draws, recording and not draws
        self._loss, self._recorded = loss, recorded(loss, factored)

    def __call__(
        self, params: Params, fixed: Params, batch: Batch, kept: Kept | None = None
    ) -> tuple[Grads, Tensor]:
        """Gradients, each ``(K, ...)``, and losses ``(K,)``.

        Args:
            params: what is trained, without what is kept.
            fixed: what is given beside it.
            batch: of the clients.
            kept: weights that are withheld from the module, by name.

        Raises:
            ReadElsewhere: the module reads one of these outside of its layer.
        """
        stacks = (params, fixed, batch, *_split(kept or {}))
        if self._recording:
            found, values = self._recorded(self._of_clients, *stacks)
        else:
            found, values = self._of_clients(*stacks)
        return {name: _whole(parts) for name, parts in found.items()}, values

    def _of_clients(
        self,
        params: Params,
        fixed: Params,
        batch: Batch,
        shared: Params,
        own: Params,
        left: Params,
        right: Params,
    ) -> tuple[Parts, Tensor]:
        n_clients = len(next(iter(batch.values())))
        alone = n_clients == 1
        rows = tree.as_one(params) if alone else params
        free = {name: value.detach().requires_grad_() for name, value in rows.items()}
        with torch.enable_grad(), taped(free if self._factored else {}) as tape:

            def run(
                free: Params, given: Params, batch: Batch, own: Params, left: Params, right: Params
            ) -> Tensor:
                base = {**shared, **own}
                tape.kept = {name: (base[name], left[name], right[name]) for name in left}
                return self._loss({**free, **given, **dict.fromkeys(left, WITHHELD)}, batch)

            rest = (fixed, batch, own, left, right)
            if alone:  # of the leaves themselves, not views of them, which no layer could tell
                with nullcontext() if self._draws else drawing_nothing():
                    values = run(free, *tree.as_one(rest))[None]
            else:
                values = stacked(run)(free, *rest)
            total = values.sum()

        def slopes() -> Grads:
            return _gradients(total, free, tape.taps, n_clients)

        def first() -> Any:  # whether one has a gradient where several have none
            one = [tree.map_tensors(_first, part) for part in (params, fixed, batch)]
            more = [tree.map_tensors(_first, part) for part in (own, left, right)]
            return self._of_clients(one[0], one[1], one[2], shared, more[0], more[1], more[2])

        grads = slopes() if alone else or_unstackable(slopes, first)
        if alone:
            grads = {n: g if isinstance(g, Outer) else g[None] for n, g in grads.items()}
        return {name: _parts(grad) for name, grad in grads.items()}, values.detach()


def _first(leaf: Tensor) -> Tensor:
    return leaf[:1]


def _split(kept: Kept) -> tuple[Params, Params, Params, Params]:
    """What is kept by its parts: weights that clients share, their own ones, and the factors."""
    factors = {name: one.factors() for name, one in kept.items()}
    return (
        {name: one.base for name, one in kept.items() if one.base is not None},
        {name: one.own for name, one in kept.items() if one.base is None},
        {name: left for name, (left, _) in factors.items()},
        {name: right for name, (_, right) in factors.items()},
    )


def _parts(grad: Tensor | Outer) -> tuple[Tensor, ...]:
    if isinstance(grad, Tensor):
        return (grad,)
    return (grad.left, grad.right) if grad.rest is None else (grad.left, grad.right, grad.rest)


def _whole(parts: tuple[Tensor, ...]) -> Tensor | Outer:
    return parts[0] if len(parts) == 1 else Outer(*parts)


def _gradients(value: Tensor, free: Params, taps: list[Tap], n_clients: int) -> Grads:
    """Gradients of a value in the leaves; those of weights on the tape by their factors."""
    leaves = [*free.values(), *(tap.outputs for tap in taps)]
    found: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if value.requires_grad:  # else it depends on nothing that is trained
        found = torch.autograd.grad(value, leaves, allow_unused=True)
    rest = dict(zip(free, found, strict=False))
    terms: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for tap, slope in zip(taps, found[len(free) :], strict=True):
        if slope is not None:
            terms.setdefault(tap.name, []).append(tap.factors(slope, n_clients))
    grads: dict[str, Tensor | Outer] = {n: joined(terms[n], None) for n in terms if n not in free}
    for name, leaf in free.items():
        dense = rest[name]
        if name in terms:
            more = dense if dense is None or n_clients > 1 else dense[None]
            grads[name] = joined(terms[name], more)
        else:
            grads[name] = torch.zeros_like(leaf) if dense is None else dense
    return grads
