"""Two ways to keep what clients send free of drift; λ says how far they do.

Each client keeps c_i, an estimate of its own gradient at the model that it sends, and the server
their mean c. With λ = 0 both ways are FedAvg.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from coterie.core.local_training.gradients import Pull
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.scaffold import control_moved, corrected
from coterie.page.settings import GameSettings


class Drift(ABC):
    """What local training adds to the gradient, what becomes of c_i, where a stage starts.

    Args:
        generality: λ, weight of the shared objective in the clients' gradient, in [0, 1].

    Attributes:
        needs_mean: whether clients must be told c.
    """

    needs_mean: ClassVar[bool]

    def __init__(self, generality: float) -> None:
        self.generality = generality

    @abstractmethod
    def pull(self, received: Params, mean: Params, own: Params) -> tuple[Pull, Any]:
        """What is added to every gradient, and its context.

        Args:
            received: W, each ``(C, ...)``.
            mean: c, each ``(...)``; empty where it is not needed.
            own: c_i, each ``(C, ...)``.
        """

    @abstractmethod
    def moved(self, change: Params, mean: Params, own: Params, way: Tensor) -> Params:
        """c_i+ - c_i, each ``(C, ...)``; 0 for a client without data.

        Args:
            change: w_i - W, each ``(C, ...)``.
            mean: c, each ``(...)``; empty where it is not needed.
            own: c_i, each ``(C, ...)``.
            way: ``(C,)`` K η, number of local steps times the learning rate.
        """

    @abstractmethod
    def start(self, aggregated: Params, mean: Params) -> Params:
        """The model that the next stage starts from, by Σ p_i w_i and the new c."""


class ControlVariates(Drift):
    """Training by g_i + λ (c - c_i), as SCAFFOLD (Karimireddy et al., ICML 2020, option II).

    c_i+ = (W - w_i)/(K η) - λ (c - c_i) is the mean of its own gradients g_i. λ = 1 is SCAFFOLD.
    """

    needs_mean = True

    def pull(self, received: Params, mean: Params, own: Params) -> tuple[Pull, Any]:
        """The same correction in all steps."""
        return corrected, {n: self.generality * (c - own[n]) for n, c in mean.items()}

    def moved(self, change: Params, mean: Params, own: Params, way: Tensor) -> Params:
        """By what the K steps went, less the correction."""
        added = {n: own[n] + self.generality * (c - own[n]) for n, c in mean.items()}
        return control_moved(change, added, way)

    def start(self, aggregated: Params, mean: Params) -> Params:
        """Σ p_i w_i."""
        return aggregated


class DynamicRegularizer(Drift):
    """Training by g_i(w) + λ (α (w - W) - c_i), as FedDyn (Acar et al., ICLR 2021, Algorithm 1).

    c_i+ = λ (c_i - α (w_i - W)), which is g_i(w_i) where training ends at rest, and the next stage
    starts from W = Σ p_i w_i - c/α. λ = 1 is FedDyn. At rest c is 0, so W is the mean of the
    clients' models, and each of these minimises (1 - λ) f_i(w) + λ α/2 ‖w - W‖²: all are W where
    λ = 1, and the smaller λ, the more each is its own.

    Args:
        generality: λ.
        alpha: α, strength of the regularizer.
    """

    needs_mean = False

    def __init__(self, generality: float, alpha: float) -> None:
        super().__init__(generality)
        self.alpha = alpha

    def pull(self, received: Params, mean: Params, own: Params) -> tuple[Pull, Any]:
        """Towards W, more so the further away."""
        centre = {n: self.alpha * w + own[n] for n, w in received.items()}
        return self._regularized, centre

    def _regularized(self, params: Params, centre: Any) -> Params:
        return {n: self.generality * (self.alpha * w - centre[n]) for n, w in params.items()}

    def moved(self, change: Params, mean: Params, own: Params, way: Tensor) -> Params:
        """By the pull at the model that training ended with."""
        return {n: self.generality * (c - self.alpha * change[n]) - c for n, c in own.items()}

    def start(self, aggregated: Params, mean: Params) -> Params:
        """Σ p_i w_i - c/α."""
        return {n: w - mean[n] / self.alpha for n, w in aggregated.items()}


def drift_of(game: GameSettings) -> Drift:
    """Make the way that a game's settings name, with the reading resolved."""
    assert game.generality is not None
    if game.drift == "dynamic":
        assert game.alpha is not None
        return DynamicRegularizer(game.generality, game.alpha)
    return ControlVariates(game.generality)
