"""Losses over single cells, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CellFunction = Callable[[Tensor, Tensor], Tensor]
"""Of outputs and targets, both ``(n,)``; elementwise."""


@dataclass(frozen=True)
class CellLoss:
    """A loss whose mean over cells is minimised.

    Attributes:
        value: the loss of each cell.
        slope: its derivative in the output; None = by autograd.

    Example:
        >>> absolute = CellLoss(lambda output, target: (output - target).abs())
        >>> absolute.derivative(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])).tolist()
        [-1.0, 1.0]
    """

    value: CellFunction
    slope: CellFunction | None = None

    def derivative(self, output: Tensor, target: Tensor) -> Tensor:
        """Differentiate in the outputs, ``(n,)``."""
        if self.slope is not None:
            return self.slope(output, target)
        with torch.enable_grad():
            free = output.detach().requires_grad_()
            (grad,) = torch.autograd.grad(self.value(free, target).sum(), free)
        return grad


def _squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square()


def _squared_slope(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).mul_(2.0)


def _logistic(output: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, target, reduction="none")


def _logistic_slope(output: Tensor, target: Tensor) -> Tensor:
    return output.sigmoid().sub_(target)


SQUARED = CellLoss(_squared, _squared_slope)
"""``(output - target)²``: of residuals, and of ratings."""
LOGISTIC = CellLoss(_logistic, _logistic_slope)
"""Binary cross-entropy of logits, targets in [0, 1]."""
