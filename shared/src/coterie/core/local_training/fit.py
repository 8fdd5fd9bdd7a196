"""Local training of a chunk of clients: the same steps for every row of stacked parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from coterie.core.errors import Unstackable
from coterie.core.local_training.batch_values import Batches
from coterie.core.local_training.gradients import Pull, clipped, multiplied_out, pulled
from coterie.core.local_training.linear_layers import Deferred, Outer, ReadElsewhere
from coterie.core.local_training.losses import Batch, ByAutograd, Gradient, Loss, Slope, of_trained
from coterie.core.local_training.row_optimizer import Params, RowOptimizer, RowState
from coterie.core.local_training.row_optimizer import RowSGD as RowSGD
from coterie.core.local_training.stacking import say_unstackable
from coterie.core.local_training.step_count import count_steps
from coterie.core.tensors import tree

T = TypeVar("T")


@dataclass(frozen=True)
class Fitted:
    """What local training gives.

    Attributes:
        params: each ``(C, ...)``.
        state: of the optimizers.
        loss: ``(C,)`` mean loss over the steps of each client; 0 for a client without steps. A step
            whose loss is NaN, as that of a batch in which every label is ignored, is not among
            them: its gradient counts all the same. NaN where every step's is.
        statistics: running statistics of the module, each ``(C, ...)``; empty where it keeps none.
    """

    params: Params
    state: RowState
    loss: Tensor
    statistics: Params = field(default_factory=dict)


def fit(
    loss: Loss,
    params: Params,
    batches: Batches,
    opt: RowOptimizer,
    lr: float | Tensor,
    steps: int | Tensor,
    *,
    state: RowState | None = None,
    clip: float | Tensor | None = None,
    slope: Slope | None = None,
    pull: Pull | None = None,
    context: Any = None,
    fixed: Params | None = None,
    statistics: Params | None = None,
    width: int | None = None,
    deferrable: Iterable[str] = (),
    factored: bool = True,
    recording: bool = True,
) -> Fitted:
    """Train C clients side by side in place, in a copy; who has made its steps leaves the stack.

    Args:
        loss: ``loss(params, batch) -> ()`` of one client (no client axis), pure, without draws.
        params: each ``(C, ...)``.
        batches: gives the stacked batches.
        opt: optimizer.
        lr: learning rate, one for all or ``(C,)``.
        steps: one for all or ``(C,)`` int64.
        state: of the optimizers, to go on from; None = a fresh start.
        clip: largest norm of the loss's gradient, as ``lr``.
        slope: gradients and values of ``loss``, where autograd is not the fastest way.
        pull: gradients that are added to the loss's after clipping, see `Pull`.
        context: stacked tree for ``pull``.
        fixed: what the loss takes beside ``params`` and is not trained, each ``(C, ...)``.
        statistics: what it writes into, each ``(C, ...)``; given, clients are trained singly.
        width: how many clients are stacked, None = all; 0 = one after the other as they stand.
        deferrable: weights whose steps may be added up late (`core.local_training.deferred`).
        factored: whether linear layers may be taped (`core.local_training.taps`).
        recording: whether steps may be recorded (`core.local_training.recorded`).

    Example:
        >>> loss = lambda params, batch: (params["w"] - batch["x"]).square().sum()
        >>> batches = lambda number, rows: {"x": torch.tensor([[1.0], [2.0]])[rows]}
        >>> fit(loss, {"w": torch.zeros(2)}, batches, RowSGD(), 0.5, torch.arange(2)).params
        {'w': tensor([0., 2.])}
    """
    first, alone = next(iter(params.values())), statistics is not None
    return _Job(
        batches,
        opt,
        start=Fitted(params, state or opt.begin(params), _nothing(first, alone), statistics or {}),
        rates=_Rates(_rate(lr, first), None if clip is None else _rate(clip, first)),
        steps=torch.as_tensor(steps).expand(len(first)),
        gradient=_gradient(loss, slope, opt, clip, factored, alone, recording),
        pull=pull,
        context={} if context is None or pull is None else context,
        fixed=fixed or {},
        deferring=_deferring(deferrable, first, opt, clip, pull, slope),
    ).run(_width(width, len(first), alone))


def _nothing(like: Tensor, counting: bool) -> Tensor:
    """Sums of losses before the first step, ``(C,)``; with counts of those that are NaN, (C, 2)."""
    return like.new_zeros(len(like), 2) if counting else like.new_zeros(len(like))


def _measured_in_part(found: Fitted) -> bool:
    """Whether a client's model is sound and the loss of some of its steps is not."""
    rows = found.loss.isnan().nonzero().flatten()
    if not rows.numel():
        return False
    mine = tree.take(found.params, rows).items()
    sound = [good for _, good in tree.finite(mine, rows.numel())]
    return bool(torch.stack(sound).all(0).any())


def _deferring(names: Iterable[str], like: Tensor, opt: RowOptimizer, *more: object) -> set[str]:
    """Weights whose steps may be added up late: those of plain gradient descent, on the CPU."""
    plain = type(opt) is RowSGD and not opt.weight_decay and all(one is None for one in more)
    return set(names) if plain and like.is_cpu else set()


def _width(asked: int | None, most: int, alone: bool) -> int:
    width = most if asked is None else asked
    return min(width, 1) if alone else width


def _gradient(
    loss: Loss, slope: Slope | None, opt: RowOptimizer, clip: object, factored: bool, *how: bool
) -> Gradient:
    if slope is not None:
        return of_trained(slope)
    return ByAutograd(loss, factored and opt.factored and clip is None, *how)


@dataclass(frozen=True)
class _Rates:
    """Learning rate and largest gradient norm: one for all, or of each client, ``(K,)``."""

    lr: float | Tensor
    clip: float | Tensor | None


@dataclass(frozen=True)
class _Job:
    """The arguments of `fit`, one a client."""

    batches: Batches
    opt: RowOptimizer
    start: Fitted
    rates: _Rates
    steps: Tensor
    gradient: Gradient
    pull: Pull | None
    context: Any
    fixed: Params
    deferring: set[str]

    def run(self, width: int) -> Fitted:
        """Train all clients; again, and counting what is measured, if some steps had no loss."""
        found = self._run_all(width)
        if self.start.loss.dim() == 1 and _measured_in_part(found):  # seldom: usual steps are fast
            counts = _nothing(self.start.loss, counting=True)
            found = replace(self, start=replace(self.start, loss=counts))._run_all(width)
        count_steps(int(self.steps.sum()))
        return found

    @torch.no_grad()
    def _run_all(self, width: int) -> Fitted:
        """Train all clients, ``width`` side by side: those of equal work, the longest first.

        0 = one after the other, as they stand.
        """
        if not len(self.steps):
            return replace(self.start, loss=_mean(self.start.loss, self.steps))
        order = torch.argsort(self.steps, descending=True, stable=True)
        if not width:
            order = torch.arange(len(order))
        end = tree.map_tensors(lambda rows: rows.new_empty(rows.shape), self.start)
        for places in torch.arange(len(order)).split(max(width, 1)):
            try:
                self._run_deferring(end, order, places)
            except Unstackable as error:
                say_unstackable(error, len(places))
                for place in places.split(1):
                    self._run_deferring(end, order, place)
        mean = replace(end, loss=_mean(end.loss, self.steps[order]))
        in_order = bool((order[1:] > order[:-1]).all())
        return mean if in_order else tree.take(mean, torch.argsort(order))

    def _run_deferring(self, end: Fitted, order: Tensor, places: Tensor) -> None:
        try:
            self._run(end, order, places)
        except ReadElsewhere:
            self.deferring.clear()
            self._run(end, order, places)

    def _run(self, end: Fitted, order: Tensor, places: Tensor) -> None:
        """Train the clients at some places of the order, ``(K,)`` adjacent, in their rows of it."""
        rows = order[places]
        at_work = _at_work(self.steps[rows])
        whole = _cut(end, int(places[0]), int(places[-1]) + 1)
        kept = {n: self._deferred(whole.params[n], n, rows) for n in self.deferring}
        mine, start = _without(whole, kept), _without(self.start, kept)
        now = tree.map_tensors(partial(_copy_rows, rows), mine, start)
        given = {"rates": self.rates, "context": self.context, "fixed": self.fixed}
        rest = list(tree.take(given, rows).values())
        spare: Params = {}
        for number, active in enumerate(at_work):
            if active < rows.numel():
                _keep(_cut(mine, active, None), _cut(now, active, None))
                rows, spare = rows[:active], {}
                mine, now = _cut(mine, 0, active), _cut(now, 0, active)
                rest = [_cut(part, 0, active) for part in rest]
                kept = {name: one.cut(active) for name, one in kept.items()}
            now = self._step(now, self.batches(number, rows), kept, spare, *rest)
        _keep(mine, now)
        for one in kept.values():
            one.settle()

    def _deferred(self, own: Tensor, name: str, rows: Tensor) -> Deferred:
        start = self.start.params[name]
        if start.stride(0) == 0:  # the same for all
            return Deferred(own, start[0])
        _copy_rows(rows, own, start)
        return Deferred(own, None)

    def _step(
        self,
        now: Fitted,
        batch: Batch,
        kept: Mapping[str, Deferred],
        spare: Params,
        rates: _Rates,
        context: Any,
        fixed: Params,
    ) -> Fitted:
        """One step of all; ``now`` is memory of its own, and so is ``spare``, to be used again."""
        grads, value = self.gradient(now.params, {**fixed, **now.statistics}, batch, kept)
        for name, one in kept.items():
            if name in grads:  # else its layer was not called
                one.descend(cast(Outer, grads[name]), rates.lr)
        if rates.clip is not None:
            grads = clipped(multiplied_out(grads), rates.clip, spare)
        if self.pull is not None:
            grads = pulled(grads, self.pull(now.params, context))
        own = {name: grad for name, grad in grads.items() if name not in kept}
        params, state = self.opt.step(now.params, own, now.state, rates.lr, in_place=True)
        if now.loss.dim() > 1:
            unknown = value.isnan()
            value = torch.stack([value.masked_fill(unknown, 0), unknown.to(value)], 1)
        return Fitted(params, state, now.loss + value, now.statistics)


def _mean(loss: Tensor, steps: Tensor) -> Tensor:
    """Mean of what was measured, ``(C,)``; NaN where nothing was, 0 where no step was made."""
    if loss.dim() == 1:
        return loss / steps.clamp(min=1)
    known = steps - loss[:, 1]
    return loss[:, 0] / known.masked_fill(steps == 0, 1)


def _without(fitted: Fitted, kept: Iterable[str]) -> Fitted:
    """Leave parameters out."""
    params = {name: value for name, value in fitted.params.items() if name not in kept}
    return replace(fitted, params=params)


def _copy_rows(rows: Tensor, into: Tensor, source: Tensor) -> Tensor:
    return torch.index_select(source, 0, rows, out=into)


def _keep(kept: Fitted, found: Fitted) -> None:
    """Write what was not trained in place where it belongs."""
    for (_, into), (_, one) in zip(tree.tensors(kept), tree.tensors(found), strict=True):
        if not (into.is_cpu and one.data_ptr() == into.data_ptr()):
            into.copy_(one)


def _at_work(steps: Tensor) -> list[int]:
    """How many clients make step 0, 1, …; ``steps`` is ``(K,)``, descending."""
    if not steps.numel() or not int(steps[0]):
        return []
    numbers = torch.arange(int(steps[0]))
    return torch.searchsorted(-steps, -numbers, right=False).tolist()


def _rate(value: float | Tensor, like: Tensor) -> float | Tensor:
    """One number for all, or one of each client."""
    return value.to(like.dtype).expand(len(like)) if isinstance(value, Tensor) else value


def _cut(stack: T, start: int, end: int | None) -> T:
    return tree.map_tensors(lambda leaf: leaf[start:end], stack)
