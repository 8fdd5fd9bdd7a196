"""What a certificate asks of a game: N leaders, one follower, policies already learned.

The game stands at one stage, under one gaming condition z (Definition 1): the global model and the
players' policies, all frozen. A stage is played so: every leader acts; leaders do not interact
within the stage; the follower sees what came of it and answers; the next stage begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Deviation:
    """What differs from the learned play, in the present stage only.

    Attributes:
        leader: who deviates; None = every leader plays its policy.
        action: ``(nA,)`` what that leader plays instead.
        answer: ``(M,)`` what the follower answers; None = what its policy answers to the stage as
            it is, that leader's deviation included.

    Raises:
        ValueError: a leader without an action, or the reverse.
    """

    leader: int | None = None
    action: Tensor | None = None
    answer: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.leader is None) != (self.action is None):
            raise ValueError("a deviation needs both a leader and its action, or neither")


LEARNED = Deviation()


@dataclass(frozen=True)
class Answer:
    """The follower's problem in the present stage, once the leaders have acted.

    Attributes:
        learned: ``(M,)`` answer of its policy.
        learned_utility: of that, in this stage.
        best: ``(M,)`` best answer found for this stage.
        best_utility: of that, in this stage.
        ceiling: no answer has a higher utility in this stage; None where nobody knows.
        others: ``(F, M)`` further answers worth a try over several stages; F does not vary.
    """

    learned: Tensor
    learned_utility: float
    best: Tensor
    best_utility: float
    ceiling: float | None
    others: Tensor


class Game(Protocol):
    """A game at its present stage. Everything random depends on ``key`` only.

    The follower's answers form a convex set (a simplex, a box): the certificate also tries points
    between two of them. What cannot be known (a client failed) is NaN.
    """

    @property
    def n_leaders(self) -> int:
        """N."""
        ...

    def learned_actions(self) -> Tensor:
        """Actions of the leaders' policies in this stage, ``(N, nA)``."""
        ...

    def described(self, action: Tensor) -> dict[str, float]:
        """Give what a leader's action ``(nA,)`` means, by name."""
        ...

    def stage_payoffs(self, actions: Tensor, key: Key) -> Tensor:
        """Payoffs ``(N,)`` of this stage alone, leader i's if it alone plays ``actions[i]``.

        Args:
            actions: ``(N, nA)``.
            key: the same key gives the same draws, whatever the actions.
        """
        ...

    def payoffs(
        self, deviations: Sequence[Deviation], horizon: int, gamma: float, key: Key
    ) -> Tensor:
        """Play the game on from here, once for each of D deviations, which meet the same draws.

        In the stages after the present one all players follow their policies.

        Args:
            deviations: may be played side by side.
            horizon: number of stages H, the present one included.
            gamma: discount factor.
            key: of all draws.

        Returns:
            ``(D, N + 1)``: sum over h < H of gamma^h u(h), the leaders' first, the follower's last.
        """
        ...

    def answer(self, deviation: Deviation, key: Key) -> Answer:
        """Give the follower's problem after the leaders' part of ``deviation``.

        Args:
            deviation: its own ``answer`` does not count.
            key: with the same key, `payoffs` begins with the same stage.
        """
        ...
