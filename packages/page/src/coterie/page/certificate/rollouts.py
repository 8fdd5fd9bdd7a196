"""Plays of the game, in batches and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.page.certificate.game import Deviation, Game
from coterie.page.settings.certificate import CertificateSettings


class Rollouts:
    """Plays a game as the settings say.

    Args:
        game: at its present stage.
        settings: horizon, discount, size of a batch.
        told: called with the number of plays so far; or None.
    """

    def __init__(
        self, game: Game, settings: CertificateSettings, told: Callable[[int], None] | None
    ) -> None:
        self.game, self.settings, self._told = game, settings, told
        self.played = 0

    def own(self, deviations: Sequence[Deviation], players: Sequence[int], key: Key) -> Tensor:
        """Payoffs ``(D,)`` float64 of ``players[d]`` in the play of ``deviations[d]``.

        Args:
            deviations: D of them.
            players: a leader's number, or N for the follower.
            key: of the draws, the same for all.
        """
        size, found = self.settings.batch, []
        for begin in range(0, len(deviations), size):
            part = deviations[begin : begin + size]
            payoffs = self.game.payoffs(part, self.settings.horizon, self.settings.gamma, key)
            column = torch.tensor(players[begin : begin + size])[:, None]
            found.append(payoffs.double().gather(1, column)[:, 0])
            self.played += len(part)
            if self._told is not None:
                self._told(self.played)
        return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)

    def seeds(self, key: Key, purpose: str) -> list[Key]:
        """Keys of the repetitions for one purpose: to test on "fresh" ones, or to choose."""
        fresh = purpose == "fresh"
        count = self.settings.seeds if fresh else self.settings.screen_seeds
        return [key.fold(purpose, number) for number in range(count)]

    def all_payoffs(self, deviation: Deviation, key: Key) -> Tensor:
        """Payoffs ``(N + 1,)`` float64 of all players in one play."""
        horizon, gamma = self.settings.horizon, self.settings.gamma
        self.played += 1
        return self.game.payoffs([deviation], horizon, gamma, key).double()[0]


def mean_or_worst(values: Tensor) -> Tensor:
    """Mean over the repetitions ``(S, ...)``; -inf where one is not finite.

    An action that breaks the player's training is no profitable deviation.
    """
    mean = values.mean(0)
    return torch.where(values.isfinite().all(0), mean, -torch.inf)
