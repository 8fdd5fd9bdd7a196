"""A client's strategy g_i(t) = (α_i, η_i): which factors it chooses, and from what range."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from coterie.core.agents.action_maps import Integers, Logarithmic
from coterie.core.tensors.keys import Key
from coterie.page.game.released_maps import ReleasedTraining
from coterie.page.settings.run import Settings


class Strategies(Protocol):
    """What the clients may do.

    Attributes:
        n_action: numbers in an action; 0 where nothing is left to choose.
    """

    n_action: int

    def choose(self, raw: Tensor, warm: Tensor, key: Key) -> Tensor:
        """Turn raw actions ``(C, n_action)`` in [-1, 1] into what is played and remembered.

        Args:
            raw: of the agents.
            warm: ``(C,)`` bool, agents that still act at random.
            key: one key an agent.
        """
        ...

    def read(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rates ``(C,)`` and numbers of epochs ``(C,)`` int64 of actions."""
        ...


class WholeRanges:
    """Learning rates on a logarithmic scale, every number of epochs as likely.

    Args:
        settings: of the paper.
    """

    def __init__(self, settings: Settings) -> None:
        train, game = settings.train, settings.game
        self._most = (train.lr, train.epochs)
        self._lr = Logarithmic(game.lr_min, train.lr) if settings.tunes_lr else None
        self._epochs = Integers(game.epochs_min, train.epochs) if settings.tunes_epochs else None
        self.n_action = sum(part is not None for part in (self._lr, self._epochs))

    def choose(self, raw: Tensor, warm: Tensor, key: Key) -> Tensor:
        """Play what the agents say."""
        return raw

    def read(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rates ``(C,)`` and numbers of epochs ``(C,)`` int64 of actions."""
        lr = action.new_full((len(action),), self._most[0])
        epochs = torch.full((len(action),), self._most[1])
        if self._lr is not None:
            lr = self._lr(action[:, 0])
        if self._epochs is not None:
            epochs = self._epochs(action[:, -1])
        return lr, epochs


class ClippedRanges:
    """What the public code does (`coterie.page.game.released_maps`).

    Args:
        settings: of the paper.
    """

    def __init__(self, settings: Settings) -> None:
        train, game = settings.train, settings.game
        self._map = ReleasedTraining(game.lr_min, train.lr, train.epochs)
        self._most = (train.lr, train.epochs)
        self._tunes_lr, self._tunes_epochs = settings.tunes_lr, settings.tunes_epochs
        self.n_action = 2 if settings.has_leaders else 0

    def choose(self, raw: Tensor, warm: Tensor, key: Key) -> Tensor:
        """Clip and scale; that is remembered, not the raw action."""
        return torch.where(warm[:, None], self._map.random(key, raw.dtype), self._map(raw))

    def read(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rates ``(C,)`` and numbers of epochs ``(C,)`` int64 of actions."""
        lr = action.new_full((len(action),), self._most[0])
        epochs = torch.full((len(action),), self._most[1])
        if self.n_action:
            of_agents = self._map.settings(action)
            # A copy, since the action stays with the client while the learning rate leaves it.
            lr = of_agents[0].clone() if self._tunes_lr else lr
            epochs = of_agents[1] if self._tunes_epochs else epochs
        return lr, epochs


def strategies_of(settings: Settings) -> Strategies:
    """Choose the maps that the (resolved) settings name."""
    clipped = settings.game.actions == "clipped"
    return ClippedRanges(settings) if clipped else WholeRanges(settings)
