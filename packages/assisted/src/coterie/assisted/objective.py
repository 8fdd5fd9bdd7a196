"""Overarching losses L_k: what an organisation wants of its outputs F_k, and their slopes.

An organisation tells nobody which one it has. All are convex in the outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.errors import UserError, nearest


class Objective(ABC):
    """A loss of every rated cell on its own; ratings and outputs are ``(n,)`` each.

    Attributes:
        is_rating: whether outputs are ratings; else logits of a positive rating.
    """

    is_rating = True

    @abstractmethod
    def loss(self, rating: Tensor, output: Tensor) -> Tensor:
        """L of every cell, ``(n,)``."""

    @abstractmethod
    def residual(self, rating: Tensor, output: Tensor) -> Tensor:
        """Pseudo-residuals r = -∂L/∂F of every cell, ``(n,)`` (Eq. 5)."""

    @abstractmethod
    def curvature(self, rating: Tensor, output: Tensor) -> Tensor:
        """∂²L/∂F² of every cell, ``(n,)``, not negative."""


class Squared(Objective):
    """L = (R - F)², of explicit feedback.

    Example:
        >>> Squared().residual(torch.tensor([4.0]), torch.tensor([3.5])).tolist()
        [1.0]
    """

    def loss(self, rating: Tensor, output: Tensor) -> Tensor:
        """L of every cell, ``(n,)``."""
        return (rating - output).square()

    def residual(self, rating: Tensor, output: Tensor) -> Tensor:
        """R = 2 (R - F), ``(n,)``."""
        return 2.0 * (rating - output)

    def curvature(self, rating: Tensor, output: Tensor) -> Tensor:
        """2 for every cell, ``(n,)``."""
        return torch.full_like(output, 2.0)


class Logistic(Objective):
    """Binary cross-entropy of R in {0, 1}, F its logit, of implicit feedback.

    Example:
        >>> Logistic().residual(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
        tensor([ 0.5000, -0.5000])
    """

    is_rating = False

    def loss(self, rating: Tensor, output: Tensor) -> Tensor:
        """L of every cell, ``(n,)``."""
        return F.binary_cross_entropy_with_logits(output, rating, reduction="none")

    def residual(self, rating: Tensor, output: Tensor) -> Tensor:
        """R = R - σ(F), ``(n,)``."""
        return rating - output.sigmoid()

    def curvature(self, rating: Tensor, output: Tensor) -> Tensor:
        """σ(F) (1 - σ(F)), ``(n,)``."""
        p = output.sigmoid()
        return p * (1.0 - p)


class Huber(Objective):
    """Squared near the rating, linear beyond: outliers pull no harder than others (Huber, 1964).

    Args:
        delta: difference, in ratings, up to which the loss is (R - F)²/2.
    """

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = delta

    def loss(self, rating: Tensor, output: Tensor) -> Tensor:
        """L of every cell, ``(n,)``."""
        return F.huber_loss(output, rating, reduction="none", delta=self.delta)

    def residual(self, rating: Tensor, output: Tensor) -> Tensor:
        """R - F, at most ``delta`` either way, ``(n,)``."""
        return (rating - output).clamp(-self.delta, self.delta)

    def curvature(self, rating: Tensor, output: Tensor) -> Tensor:
        """1 where the loss is squared, else 0, ``(n,)``."""
        return ((rating - output).abs() <= self.delta).to(output)


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "squared": Squared,
    "logistic": Logistic,
    "huber": Huber,
}
"""Losses by name; an organisation's own is added here."""
OF_FEEDBACK = {"explicit": "squared", "implicit": "logistic"}
"""The loss of each kind of feedback, where an organisation names no other."""


def objective(name: str) -> Objective:
    """Make a loss.

    Raises:
        UserError: there is none of that name.
    """
    if name not in OBJECTIVES:
        raise UserError(f"the objective '{name}' is unknown: {nearest(name, OBJECTIVES)}")
    return OBJECTIVES[name]()
