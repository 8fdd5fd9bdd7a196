"""The core's rule of optimizers as a `torch.optim.Optimizer`, for tables with sparse gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from coterie.core.local_training.row_optimizer import RowOptimizer, RowState


class RowStepped(Optimizer):
    """One optimizer of dense and of sparse gradients, which torch has not.

    Args:
        params: what is trained.
        rule: how to step.
        lr: learning rate.

    Example:
        >>> from coterie.core.local_training.row_optimizer import RowSGD
        >>> weight = Parameter(torch.ones(2))
        >>> optimizer = RowStepped([weight], RowSGD(), lr=0.5)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, 0.5]
    """

    def __init__(self, params: Sequence[Parameter], rule: RowOptimizer, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self._rule = rule

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step; the state of a parameter is its number of steps and its moments."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for value in group["params"]:
                    if value.grad is not None:
                        self._step(value, value.grad, group["lr"])
        return loss

    def _step(self, value: Parameter, grad: Tensor, lr: float) -> None:
        mine, old = self.state[value], {"value": value.detach()[None]}
        if not mine:
            begun = self._rule.begin(old)
            mine["step"] = begun.steps
            mine.update({name: moment["value"] for name, moment in begun.moments.items()})
        moments = {name: {"value": mine[name]} for name in self._rule.moments}
        state = RowState(mine["step"], moments)
        new, state = self._rule.step(old, {"value": grad[None]}, state, lr)
        value.copy_(new["value"][0])
        mine["step"] = state.steps
        mine.update({name: moment["value"] for name, moment in state.moments.items()})
