"""Settings of the agents that a user may leave to the reading. Torch-free."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError


@dataclass(frozen=True)
class AgentOptions:
    """An agent (DDPG); what is not set is the reading's choice."""

    hidden: tuple[int, int] | None = None
    """Units of the two hidden layers, in actor and critic."""
    init: Literal["fan_in", "fan_out"] | None = None
    """Bound of the hidden weights: 1/√inputs or, as the public code by a slip, 1/√outputs."""
    start: float | None = None
    """What every coordinate of an action is before anything is learnt, in (-1, 1)."""
    critic_lr: float | None = None
    """Learning rate of the critic (Adam)."""
    actor_lr: float | None = None
    """Learning rate of the actor (Adam)."""
    saturation: float | None = None
    """Price of the actor's output beyond ±1.5, squared; it keeps actions off the ends."""
    tau: float | None = None
    """τ: share of the networks that enters the target networks at an update."""
    gamma: float | None = None
    """γ: discount of the next round's reward; 0 is a bandit."""
    batch_size: int | None = None
    """Experiences of an update."""
    capacity: int | None = None
    """Experiences kept; the oldest gives way."""
    warm_up: int | None = None
    """First rounds, with uniformly random actions and no update."""
    updates: int | None = None
    """Updates a round."""
    noise_theta: float | None = None
    """θ of the Ornstein-Uhlenbeck noise: pull towards 0."""
    noise_sigma: float | None = None
    """σ of the Ornstein-Uhlenbeck noise; 0 is no noise after the warm-up."""
    noise_dt: float | None = None
    """Time between two rounds, for the noise."""
    noise_decay: int | None = None
    """Rounds after the warm-up over which the noise shrinks linearly; 0 = it does not shrink."""
    noise_final: float | None = None
    """Share of the noise that stays after that."""

    def __post_init__(self) -> None:
        self.ddpg()  # refuses what is out of range

    def ddpg(self) -> DDPGSettings:
        """What the agents run with; a value that is still open is that of `DDPGSettings`.

        Raises:
            UserError: a value is out of range.
        """
        return DDPGSettings(**{n: value for n, value in asdict(self).items() if value is not None})


def check_batch(section: str, agent: DDPGSettings) -> None:
    """Refuse a batch that the memory of a section's agent cannot fill, but by repetitions.

    Raises:
        UserError: it cannot.
    """
    if agent.batch_size > agent.capacity:
        raise UserError(
            f"'{section}.batch_size' {agent.batch_size} exceeds the {agent.capacity} experiences "
            f"that '{section}.capacity' keeps: choose less"
        )
