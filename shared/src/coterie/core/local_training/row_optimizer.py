"""Optimizers over stacked parameters: one optimizer a row, all rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.local_training.embedding_rows import touched
from coterie.core.local_training.gradients import Grads, clipped, multiplied_out
from coterie.core.local_training.linear_layers import Outer, address, descended
from coterie.core.tensors import tree

Params = dict[str, Tensor]  # name -> (C, ...)


@dataclass(frozen=True)
class RowState:
    """State of C optimizers; may be a field of a `Private`.

    Attributes:
        steps: ``(C,)`` int64, steps that each row has made.
        moments: what the optimizer remembers, name of the moment -> name of the parameter ->
            ``(C, ...)``.
    """

    steps: Tensor
    moments: dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class RowOptimizer(ABC):
    """Optimize every row of stacked parameters as a `torch.optim` optimizer of its own would.

    `torch.optim` itself refuses a learning rate a row, shares one step count, and lets weight decay
    and momentum move a row that has finished.

    A sparse gradient (see `Touched`) moves the rows of a table that it names, in time and, in
    place, memory of these alone. Moments and weight decay are of the named rows only: what a dense
    gradient with zeros would do to the others is left out. The step count is the client's.

    Attributes:
        factored: whether steps are made of `Outer` gradients without multiplying them out.
        weight_decay: L2 pull, added to the gradient.
    """

    factored: ClassVar[bool] = False
    weight_decay: float = 0.0

    @property
    @abstractmethod
    def moments(self) -> tuple[str, ...]:
        """Names of the moments kept for each parameter."""

    @abstractmethod
    def _direction(self, grad: Tensor, moments: Params, steps: Tensor) -> tuple[Tensor, Params]:
        """Descent direction before the learning rate, and the new moments.

        Args:
            grad: ``(C, ...)``.
            moments: of this parameter, by name of the moment.
            steps: ``(C, 1, ...)`` int64, this step included; broadcasts against ``grad``.
        """

    def _lazy_direction(
        self, grad: Tensor, moments: Params, steps: Tensor
    ) -> tuple[Tensor, Params]:
        """`_direction` for the rows of a table that a sparse gradient names."""
        return self._direction(grad, moments, steps)

    def begin(self, params: Params) -> RowState:
        """State before the first step."""
        first = next(iter(params.values()))
        steps = torch.zeros(first.shape[0], dtype=torch.int64, device=first.device)
        zeros = {
            moment: tree.map_tensors(torch.zeros_like, dict(params)) for moment in self.moments
        }
        return RowState(steps, zeros)

    def step(
        self,
        params: Params,
        grads: Grads,
        state: RowState,
        lr: float | Tensor,
        *,
        clip: float | Tensor | None = None,
        in_place: bool = False,
    ) -> tuple[Params, RowState]:
        """Make one step in every row; nothing given is changed unless ``in_place``.

        Args:
            params: each ``(C, ...)``.
            grads: as ``params``, of tables also sparse, of weights also `Outer`.
            state: of the rows.
            lr: learning rate, one for all or ``(C,)``.
            clip: largest L2 norm of a row's gradient over all its parameters, one for all or
                ``(C,)``; as `torch.nn.utils.clip_grad_norm_`.
            in_place: whether ``params`` and the moments are the caller's own, share no memory with
                one another and may be written over; gradients never are. What counts is what is
                returned; nothing of it lies in the memory of gradients.
        """
        plain = grads if self.factored and clip is None else multiplied_out(grads)
        if clip is not None:
            plain = clipped(multiplied_out(plain), clip)
        outer = {name: grad for name, grad in plain.items() if isinstance(grad, Outer)}
        given = {name: grad for name, grad in plain.items() if isinstance(grad, Tensor)}
        tables = {name: params[name] for name, grad in given.items() if grad.is_sparse}
        dense = {name: params[name] for name in given if name not in tables}
        writes = in_place and state.steps.is_cpu  # elsewhere into tables and weights alone
        if in_place and (writes or tables or outer):
            memory = {address(value) for value in params.values()}
            given = {n: g.clone() if address(g) in memory else g for n, g in given.items()}
            outer = {name: grad.apart_from(memory) for name, grad in outer.items()}
        new, after = self._moved(dense, given, state, lr, writes)
        for name, grad in outer.items():
            new[name] = grad.descend(params[name], lr, self.weight_decay, in_place=in_place)
        if not tables:
            return _like(params, new), after
        rows, of_rows = self._rows_moved(tables, given, state, lr, in_place)
        moments = {name: _like(params, after.moments[name], of_rows[name]) for name in self.moments}
        return _like(params, new, rows), RowState(after.steps, moments)

    def _rows_moved(
        self, tables: Params, grads: Params, state: RowState, lr: float | Tensor, in_place: bool
    ) -> tuple[Params, dict[str, Params]]:
        """Step the rows of tables that their gradients name; new tables, and their moments."""
        new: Params = {}
        moments: dict[str, Params] = {moment: {} for moment in self.moments}
        for name, value in tables.items():
            named = touched(grads[name])
            grad, old, mine = named.values, named.of(value), named.clients
            if self.weight_decay:
                grad = torch.add(grad, old, alpha=self.weight_decay)
            steps = tree.columns(state.steps[mine] + 1, grad)
            kept = {moment: named.of(state.moments[moment][name]) for moment in self.moments}
            direction, kept = self._lazy_direction(grad, kept, steps)
            rate = lr[mine] if isinstance(lr, Tensor) and lr.dim() else lr
            rows = descended(old, direction, rate)
            new[name] = named.put(value, rows, in_place=in_place)
            for moment in self.moments:
                table = state.moments[moment][name]
                moments[moment][name] = named.put(table, kept[moment], in_place=in_place)
        return new, moments

    def _moved(
        self, params: Params, grads: Params, state: RowState, lr: float | Tensor, in_place: bool
    ) -> tuple[Params, RowState]:
        steps = state.steps + 1
        new: Params = {}
        moments: dict[str, Params] = {moment: {} for moment in self.moments}
        for name, value in params.items():
            grad = grads[name]
            if self.weight_decay:
                grad = torch.add(grad, value, alpha=self.weight_decay)
            kept = {moment: state.moments[moment][name] for moment in self.moments}
            direction, kept = self._direction(grad, kept, tree.columns(steps, value))
            if in_place:
                kept = _apart(kept, grads[name])
            out = value if in_place else None
            new[name] = descended(value, direction, lr, out)
            for moment in self.moments:
                moments[moment][name] = kept[moment]
        return new, RowState(steps, moments)


@dataclass(frozen=True, kw_only=True)
class RowSGD(RowOptimizer):
    """Stochastic gradient descent, as `torch.optim.SGD` without momentum.

    Example:
        >>> opt = RowSGD()
        >>> params = {"w": torch.zeros(2, 1)}
        >>> lr = torch.tensor([1.0, 0.1])
        >>> opt.step(params, {"w": torch.ones(2, 1)}, opt.begin(params), lr)[0]["w"].tolist()
        [[-1.0], [-0.10000000149011612]]
    """

    factored = True

    @property
    def moments(self) -> tuple[str, ...]:
        """None."""
        return ()

    def _direction(self, grad: Tensor, moments: Params, steps: Tensor) -> tuple[Tensor, Params]:
        return grad, moments

    def _moved(
        self, params: Params, grads: Params, state: RowState, lr: float | Tensor, in_place: bool
    ) -> tuple[Params, RowState]:
        new: Params = {}
        for name, value in params.items():
            grad = grads[name]
            if self.weight_decay:
                grad = torch.add(grad, value, alpha=self.weight_decay)
            new[name] = descended(value, grad, lr, value if in_place else None)
        return new, RowState(state.steps + 1, state.moments)


def _like(params: Params, *parts: Params) -> Params:
    """Join parts, of which later ones count, in the order of the parameters."""
    found = {name: value for part in parts for name, value in part.items()}
    return {name: found[name] for name in params}


def _apart(kept: Params, grad: Tensor) -> Params:
    """Copy moments that lie in the memory of a gradient, which is the caller's."""
    return {n: v.clone() if address(v) == address(grad) else v for n, v in kept.items()}
