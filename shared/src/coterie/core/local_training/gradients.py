"""Gradients and losses of stacked clients, by the shortest way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from coterie.core.local_training.deferred import WITHHELD, Deferred
from coterie.core.local_training.losses import Batch, Loss, Slope
from coterie.core.local_training.outer import Outer, joined
from coterie.core.local_training.recorded import recorded
from coterie.core.local_training.row_optimizer import Grads, Params
from coterie.core.local_training.stacking import drawing_nothing, or_unstackable, stacked
from coterie.core.local_training.taps import Tap, taped
from coterie.core.tensors import tree

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
