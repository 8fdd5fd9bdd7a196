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
from coterie.core.local_training.row_optimizer import Grads, Params
from coterie.core.local_training.stacking import drawing_nothing, stacked
from coterie.core.local_training.taps import Tap, taped

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
    """

    def __init__(self, loss: Loss, factored: bool, draws: bool = False) -> None:
        self._factored, self._draws = factored, draws
        self._loss = loss
        # What stands for the tensors of one client, made once: steps in place give the same ones.
        self._trained: dict[str, tuple[Tensor, Tensor]] = {}
        self._given: dict[str, tuple[Tensor, Tensor]] = {}

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
        kept = kept or {}
        if len(next(iter(batch.values()))) == 1:
            return self._of_one(params, fixed, batch, kept)
        free = {name: rows.detach().requires_grad_() for name, rows in params.items()}
        shared = {name: one.base for name, one in kept.items() if one.base is not None}
        own = {name: one.own for name, one in kept.items() if one.base is None}
        factors = {name: one.factors() for name, one in kept.items()}
        with torch.enable_grad(), taped(free if self._factored else {}) as tape:

            def run(free: Params, given: Params, batch: Batch, own: Params, factors: Any) -> Tensor:
                tape.kept = {n: ({**shared, **own}[n], *pair) for n, pair in factors.items()}
                return self._loss({**free, **given, **dict.fromkeys(kept, WITHHELD)}, batch)

            values = stacked(run)(free, fixed, batch, own, factors)
            total = values.sum()
        return _gradients(total, free, tape.taps, len(values)), values.detach()

    def _of_one(
        self, params: Params, fixed: Params, batch: Batch, kept: Kept
    ) -> tuple[Grads, Tensor]:
        free = _views(params, self._trained, lambda rows: rows[0].detach().requires_grad_())
        given = _views(fixed, self._given, lambda rows: rows[0])
        mine = {name: rows[0] for name, rows in batch.items()}
        with (
            torch.enable_grad(),
            taped(free if self._factored else {}) as tape,
            nullcontext() if self._draws else drawing_nothing(),
        ):
            for name, one in kept.items():
                left, right = one.factors()
                tape.kept[name] = (one.own[0] if one.base is None else one.base, left[0], right[0])
            value = self._loss({**free, **given, **dict.fromkeys(kept, WITHHELD)}, mine)
        grads = _gradients(value, free, tape.taps, 1)
        stack = {n: g if isinstance(g, Outer) else g[None] for n, g in grads.items()}
        return stack, value.detach()[None]


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


def _views(
    stack: Params, made: dict[str, tuple[Tensor, Tensor]], make: Callable[[Tensor], Tensor]
) -> Params:
    """Views of tensors: those made before where the tensor is the same."""
    for name, value in stack.items():
        if name not in made or made[name][0] is not value:
            made[name] = (value, make(value))
    return {name: made[name][1] for name in stack}
