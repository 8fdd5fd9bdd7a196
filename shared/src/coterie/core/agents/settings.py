"""Settings of the agents. Torch-free; the docstring of a field is its ``--help`` text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import at_least, between, each_at_least, each_positive


@dataclass(frozen=True)
class DDPGSettings:
    """DDPG (Lillicrap et al., ICLR 2016, Algorithm 1); PAGE's values on Synthetic."""

    hidden: tuple[int, int] = (40, 30)
    """Units of the two hidden layers, in actor and critic."""
    init: Literal["fan_in", "fan_out"] = "fan_in"
    """Bound of the hidden weights: 1/√inputs or, as PAGE's public code by a slip, 1/√outputs."""
    start: float = 0.0
    """What every coordinate of an action is before anything is learnt, in (-1, 1)."""
    critic_lr: float = 5e-3
    """Learning rate of the critic (Adam)."""
    actor_lr: float = 5e-4
    """Learning rate of the actor (Adam)."""
    saturation: float = 0.0
    """Price of what the actor's output before the tanh has beyond ±1.5 (an action of ±0.905),
    squared. It keeps actions off the ends of their range, where the tanh is flat and an actor stays
    that an untrained critic pushed there."""
    tau: float = 0.005
    """τ: share of the networks that enters the target networks at an update."""
    gamma: float = 0.99
    """γ: discount of the next round's reward; 0 is a bandit."""
    batch_size: int = 32
    """Experiences of an update, drawn with replacement from the agent's own memory."""
    capacity: int = 1000
    """Experiences kept for an agent; the oldest gives way. PAGE's public code keeps 60000, which is
    the same in a run of up to 1000 rounds."""
    warm_up: int = 36
    """First rounds of an agent, with uniformly random actions and no update."""
    updates: int = 1
    """Updates a round."""
    noise_theta: float = 0.15
    """θ of the Ornstein-Uhlenbeck noise: pull towards 0."""
    noise_sigma: float = 0.2
    """σ of the Ornstein-Uhlenbeck noise; 0 is no noise after the warm-up."""
    noise_dt: float = 1.0
    """Time between two rounds, for the noise. PAGE's public code has 0.01: the noise then needs
    1/(θ·0.01) ≈ 670 rounds to forget its value, so nearly the same deviation is tried all along."""
    noise_decay: int = 500
    """Rounds after the warm-up over which the noise shrinks linearly; 0 = it does not shrink."""
    noise_final: float = 0.0
    """Share of the noise that stays after that."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "batch_size", "capacity", "updates")
        for units in self.hidden:
            at_least("hidden", units, 1)
        each_at_least(self, 0, "warm_up", "saturation", "noise_sigma", "noise_decay", "noise_final")
        each_positive(self, "critic_lr", "actor_lr", "noise_dt")
        between("tau", self.tau, 0, 1)
        if not -1 < self.start < 1:
            raise UserError(f"'start' must be above -1 and below 1, not {self.start:g}")
        between("noise_final", self.noise_final, -1, 1)
        if not 0 <= self.gamma < 1:
            raise UserError(f"'gamma' must be at least 0 and below 1, not {self.gamma:g}")
        # Beyond 2 the discretised process grows without bound.
        if not 0 <= self.noise_theta * self.noise_dt < 2 or not math.isfinite(self.noise_sigma):
            raise UserError(
                "'noise_theta' × 'noise_dt' must be at least 0 and below 2 and 'noise_sigma' "
                f"finite, not {self.noise_theta:g} × {self.noise_dt:g} and {self.noise_sigma:g}"
            )
