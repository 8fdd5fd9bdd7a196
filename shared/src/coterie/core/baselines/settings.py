"""Settings of the general methods. Torch-free; the docstring of a field is its ``--help`` text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.core.errors import UserError


@dataclass(frozen=True)
class FedAvgSettings:
    """FedAvg (McMahan et al., AISTATS 2017, Algorithm 1); symbols as there."""

    fraction: float = 1.0
    """C: share of the clients that take part in a round, in (0, 1]."""
    epochs: int = 1
    """E: passes of a client over its data in a round."""
    batch_size: int | None = None
    """B: local mini-batch size; null is B = ∞, all data in one batch (FedSGD if E is 1)."""
    lr: float = 0.1
    """η: learning rate of the clients."""
    rounds: int = 100
    """T: communication rounds (of a block, in a stream)."""
    evaluate_every: int = 1
    """Rounds from one evaluation on all clients to the next; 0 is never."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(f"fraction must be in (0, 1], got {self.fraction}")
        for name in ("epochs", "rounds"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1 or null, got {self.batch_size}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise UserError(f"lr must be above 0, got {self.lr}")
        if self.evaluate_every < 0:
            raise UserError(f"evaluate_every must be 0 or more, got {self.evaluate_every}")


@dataclass(frozen=True)
class FedProxSettings(FedAvgSettings):
    """FedProx (Li et al., MLSys 2020, Algorithm 2); symbols as there."""

    mu: float = 0.01
    """μ: strength of the proximal term μ/2 ‖w - wᵗ‖²; 0 is FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.mu >= 0 and math.isfinite(self.mu)):
            raise UserError(f"mu must be 0 or more, got {self.mu}")
