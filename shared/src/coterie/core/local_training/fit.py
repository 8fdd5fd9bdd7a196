"""Local training of a chunk of clients: the same steps for every row of stacked parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from coterie.core.local_training.row_optimizer import Params, RowOptimizer, RowState, clipped
from coterie.core.local_training.row_optimizer import RowSGD as RowSGD
from coterie.core.local_training.stacking import by_rows, concatenate, stacked
from coterie.core.local_training.step_count import count_steps
from coterie.core.tensors import tree

T = TypeVar("T")
Batch = dict[str, Tensor]
Loss = Callable[[Params, Batch], Tensor]
AsBatch = Callable[[Batch], Any]
"""Makes of a dict of samples, ``name -> (B, ...)``, what the methods of a module take."""
Slope = Callable[[Params, Batch], tuple[Params, Tensor]]
"""Gradients, each ``(K, ...)``, and losses ``(K,)`` of K clients with stacked parameters."""
Pull = Callable[[Params, Any], Params]
"""Gradients of what a method adds to the loss, from stacked parameters and a stacked context.

They are dense: a table whose own gradient is sparse is stepped as a whole where it is pulled."""


class Batches(Protocol):
    """Batches of a chunk of clients, made when they are needed.

    A batch is a dict of tensors with two leading axes ``(K, B, ...)``: K clients, B samples. Where
    clients have unequal numbers of samples, the shorter ones are padded (with finite values) and
    ``batch["mask"]``, ``(K, B)`` bool, says which samples count; where all are equal there is no
    mask. `masked` turns a loss that knows no mask into one that obeys it.
    """

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` (from 0) of the clients at the positions ``rows``, ``(K,)`` int64."""
        ...


@dataclass(frozen=True)
class Fitted:
    """What local training gives.

    Attributes:
        params: each ``(C, ...)``.
        state: of the optimizers.
        loss: ``(C,)`` mean loss over the steps of each client; 0 for a client without steps.
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
) -> Fitted:
    """Train C clients side by side, each with its own number of steps.

    Who has finished leaves the stack. A single client, or the last one at work, is trained in
    place, in copies of what is given.

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
        pull: gradients added to those of the loss after clipping, ``pull(params, context)`` for
            the clients still at work: a proximal term, a control variate; of all or some of them.
        context: stacked tree for ``pull``.
        fixed: what the loss takes beside ``params`` and is not trained, each ``(C, ...)``.
        statistics: what it writes into, each ``(C, ...)``; given, even if empty, clients are
            trained one after the other (`coterie.core.local_training.alone`).

    Example:
        >>> loss = lambda params, batch: (params["w"] - batch["x"]).square().sum()
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> fitted = fit(loss, {"w": torch.zeros(2)}, lambda number, rows: {"x": x[rows]},
        ...              RowSGD(), 0.5, torch.tensor([0, 1]))
        >>> fitted.params["w"].tolist()
        [0.0, 2.0]
    """
    first = next(iter(params.values()))
    none = first.new_zeros(len(first))
    job = _Job(
        batches=batches,
        opt=opt,
        start=Fitted(params, state or opt.begin(params), none, statistics or {}),
        rates=_Rates(_per_row(lr, first), None if clip is None else _per_row(clip, first)),
        steps=torch.as_tensor(steps).expand(len(first)),
        slope=_slope(loss, slope, alone=statistics is not None),
        pull=pull,
        context={} if context is None else context,
        fixed=fixed or {},
    )
    return job.run_all(torch.arange(len(first)), alone=statistics is not None)


def of_clients(
    function: Loss, params: Params, batches: Batches, rows: Tensor, number: int = 0
) -> Tensor:
    """Values ``(K,)`` of a function of the clients ``rows`` on one of their batches.

    Args:
        function: of one client's parameters and batch, ``-> ()``.
        params: each ``(C, ...)``, or ``(1, ...)`` where all clients have the same.
        batches: gives the stacked batches.
        rows: ``(K,)`` int64 positions, K at least 1.
        number: of the batch, from 0.
    """

    def run(rows: Tensor) -> Tensor:
        mine = {
            name: value.expand(len(rows), *value.shape[1:])
            if len(value) == 1
            else value.index_select(0, rows)
            for name, value in params.items()
        }
        value: Tensor = stacked(function)(mine, batches(number, rows))
        return value

    return by_rows(run, rows)


@dataclass(frozen=True)
class _Rates:
    """Learning rate and largest gradient norm of each client, ``(K,)``."""

    lr: Tensor
    clip: Tensor | None


@dataclass(frozen=True)
class _Job:
    """The arguments of `fit`, one a client."""

    batches: Batches
    opt: RowOptimizer
    start: Fitted
    rates: _Rates
    steps: Tensor
    slope: Callable[[Params, Params, Batch], tuple[Params, Tensor]]
    pull: Pull | None
    context: Any
    fixed: Params

    def run_all(self, rows: Tensor, alone: bool) -> Fitted:
        """Train all clients, side by side where nothing forbids it."""
        if not rows.numel():
            return self.start
        if alone:
            return concatenate([self.run(row) for row in rows.split(1)])
        return by_rows(self.run, rows)

    @torch.no_grad()
    def run(self, rows: Tensor) -> Fitted:
        """Train the clients at some positions, ``(K,)`` int64."""
        steps = self.steps[rows]
        order = torch.argsort(steps, descending=True, stable=True)
        rows, steps = rows[order], steps[order]
        given = {"rates": self.rates, "context": self.context, "fixed": self.fixed}
        now, *rest = tree.take({"now": self.start, **given}, rows).values()
        at_work = _at_work(steps)
        done: list[Fitted] = []
        spare: Params = {}
        for number, active in enumerate(at_work):
            if active < rows.numel():
                done.append(_cut(now, active, None))
                rows = rows[:active]
                now, rest = _cut(now, 0, active), [_cut(part, 0, active) for part in rest]
            now = self._step(now, self.batches(number, rows), spare, *rest)
        count_steps(sum(at_work))
        end = concatenate([now, *reversed(done)]) if done else now
        mean = replace(end, loss=end.loss / steps.clamp(min=1))
        return tree.take(mean, torch.argsort(order)) if order.numel() > 1 else mean

    def _step(
        self, now: Fitted, batch: Batch, spare: Params, rates: _Rates, context: Any, fixed: Params
    ) -> Fitted:
        alone = len(now.loss) == 1  # then all of `now` is its own copy, with memory to use again
        grads, value = self.slope(now.params, {**fixed, **now.statistics}, batch)
        if rates.clip is not None:
            grads = clipped(grads, rates.clip, spare if alone else None)
        if self.pull is not None:
            more = self.pull(now.params, context)
            # Torch adds a sparse one to a dense one, and not the other way round.
            grads = {n: more[n] + grad if n in more else grad for n, grad in grads.items()}
        params, state = self.opt.step(now.params, grads, now.state, rates.lr, in_place=alone)
        return Fitted(params, state, now.loss + value, now.statistics)


def _at_work(steps: Tensor) -> list[int]:
    """How many clients make step 0, 1, …; ``steps`` is ``(K,)``, descending."""
    if not steps.numel() or not int(steps[0]):
        return []
    numbers = torch.arange(int(steps[0]))
    return torch.searchsorted(-steps, -numbers, right=False).tolist()


def pure(module: nn.Module, method: str, as_batch: AsBatch | None = None) -> Loss:
    """Turn a method of a module, such as its loss, into a function of its parameters.

    Args:
        module: has ``method(batch)``.
        method: its name.
        as_batch: makes of the dict what the method takes; None = the dict itself.
    """
    called = _Calls(module, method)

    def function(params: Params, batch: Batch) -> Tensor:
        named = {f"module.{name}": value for name, value in params.items()}
        taken = batch if as_batch is None else as_batch(batch)
        return functional_call(called, named, (taken,))

    return function


def masked(loss: Loss) -> Loss:
    """Make a loss obey a batch's mask.

    Args:
        loss: of one client; the mean over the samples of its batch of something that depends on
            one sample. It need not know of masks.

    Returns:
        The loss over the samples that count. Batches without a mask go to ``loss`` itself.
    """

    def obeying(params: Params, batch: Batch) -> Tensor:
        if "mask" not in batch:
            return loss(params, batch)
        samples = {name: value for name, value in batch.items() if name != "mask"}
        mask = batch["mask"]
        values = per_sample(loss, params, samples)
        return torch.where(mask, values, 0.0).sum() / mask.sum()

    return obeying


def per_sample(loss: Loss, params: Params, samples: Batch) -> Tensor:
    """Losses ``(B,)`` of single samples: each is a batch of one."""
    alone = {name: value.unsqueeze(1) for name, value in samples.items()}
    return stacked(lambda sample: loss(params, sample))(alone)


def _slope(
    loss: Loss, slope: Slope | None, alone: bool
) -> Callable[[Params, Params, Batch], tuple[Params, Tensor]]:
    """Gradients in the parameters, and values, by the shortest way."""
    if slope is not None:
        return _of_trained(slope)
    return _GradientOfOne(loss) if alone else _gradient(loss)


class _GradientOfOne:
    """`_gradient` for a stack of one client, of a loss that may write and draw.

    A step in place gives the tensors that it got: what stands for them without the client axis is
    made once a run, not in every step.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._trained: dict[str, tuple[Tensor, Tensor]] = {}
        self._given: dict[str, tuple[Tensor, Tensor]] = {}

    def __call__(self, params: Params, fixed: Params, batch: Batch) -> tuple[Params, Tensor]:
        free = _views(params, self._trained, lambda value: value[0].detach().requires_grad_())
        given = _views(fixed, self._given, lambda value: value[0])
        grads, value = _gradient_in(self._loss, free, given, {n: v[0] for n, v in batch.items()})
        return {name: grad[None] for name, grad in grads.items()}, value[None]


def _views(
    stack: Params, made: dict[str, tuple[Tensor, Tensor]], make: Callable[[Tensor], Tensor]
) -> Params:
    """Views of tensors: those made before where the tensor is the same."""
    for name, value in stack.items():
        if name not in made or made[name][0] is not value:
            made[name] = (value, make(value))
    return {name: made[name][1] for name in stack}


def _gradient(loss: Loss) -> Callable[[Params, Params, Batch], tuple[Params, Tensor]]:
    """Gradients in the parameters, and values, for stacked clients."""

    def call(params: Params, fixed: Params, batch: Batch) -> tuple[Params, Tensor]:
        return grad_and_value(lambda free: loss({**free, **fixed}, batch))(params)

    return stacked(call, alone=_gradient_alone(loss))


def _gradient_alone(loss: Loss) -> Callable[[Params, Params, Batch], tuple[Params, Tensor]]:
    """The same by plain autograd for one client; `torch.func`'s own takes seconds to import."""

    def call(params: Params, fixed: Params, batch: Batch) -> tuple[Params, Tensor]:
        free = {name: value.detach().requires_grad_() for name, value in params.items()}
        return _gradient_in(loss, free, fixed, batch)

    return call


def _gradient_in(loss: Loss, free: Params, fixed: Params, batch: Batch) -> tuple[Params, Tensor]:
    """Gradients in what is free, leaves of autograd, and the value."""
    with torch.enable_grad():
        value = loss({**free, **fixed}, batch)
    grads = torch.autograd.grad(value, list(free.values()), materialize_grads=True)
    return dict(zip(free, grads, strict=True)), value.detach()


def _of_trained(slope: Slope) -> Callable[[Params, Params, Batch], tuple[Params, Tensor]]:
    """Keep of a slope's gradients those of what is trained."""

    def call(params: Params, fixed: Params, batch: Batch) -> tuple[Params, Tensor]:
        grads, value = slope({**params, **fixed}, batch)
        return {name: grads[name] for name in params}, value

    return call


class _Calls(nn.Module):
    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, batch: Any) -> Tensor:
        value: Tensor = getattr(self.module, self.method)(batch)
        return value


def _per_row(value: float | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype).expand(like.shape[0])


def _cut(stack: T, start: int, end: int | None) -> T:
    return tree.map_tensors(lambda leaf: leaf[start:end], stack)
