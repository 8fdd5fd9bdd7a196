"""Utilities and rewards of the players (Definition 1), strategies, when a game is at rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.core.agents.action_maps import Integers, Logarithmic
from coterie.core.tensors.keys import Key
from coterie.page.settings import GameSettings, Settings

_ADDED = {"bounded": 0.1, "inverse": 1e-5}
"""What is added to a loss, so that one of 0 has a finite utility; 1e-5 is the public code's."""

UTILITIES = ("page/reward_server", "page/reward_clients")
Utility = Callable[[Tensor], Tensor]


def utility_of(kind: str) -> Utility:
    """Give the utility 1/f of a loss f, of any shape (Definition 1).

    Args:
        kind: "bounded" is 1/(f + 0.1), at most 10; "inverse" all but 1/f.

    Example:
        >>> utility_of("bounded")(torch.tensor([0.0, 0.4])).tolist()
        [10.0, 2.0]
    """
    added = _ADDED[kind]
    return lambda loss: 1 / (loss + added)


def leaders_reward(own: Tensor, server: Tensor, game: GameSettings, released: bool) -> Tensor:
    """Reward of the clients, ``(C,)``: λ·u_CS + (1 - λ)·u_i; u_i where nothing is shared.

    Args:
        own: ``(C,)`` u_i.
        server: ``()`` u_CS of the same stage.
        game: has the ratio.
        released: each scales its own utility instead, as the public code does.
    """
    ratio = game.ratio()
    if ratio is None:
        return own
    of_server, of_clients = ratio
    if released:
        return of_clients * own
    return (of_server * server + of_clients * own) / (of_server + of_clients)


def followers_reward(server: Tensor, clients: Tensor, game: GameSettings, released: bool) -> Tensor:
    """Reward of the server, ``()``, likewise: u_CS, or what is shared with the mean of the u_i."""
    ratio = game.ratio()
    if ratio is None or released:
        return server if ratio is None else ratio[0] * server
    return leaders_reward(torch.nanmean(clients), server, game, released)


def settled(history: Sequence[dict[str, float]], game: GameSettings) -> bool:
    """Say whether W and w_i stopped evolving (section 4.4): no mean utility moved between windows.

    Args:
        history: scalars of the rounds so far, oldest first.
        game: window ``patience`` and ``tolerance``.

    Example:
        >>> still = [{"page/reward_server": 0.5, "page/reward_clients": 0.7}] * 8
        >>> settled(still, GameSettings(patience=4)), settled(still, GameSettings(patience=5))
        (True, False)
    """
    window = game.patience
    assert window is not None
    if len(history) < 2 * window:
        return False
    for name in UTILITIES:
        values = [scalars.get(name, math.nan) for scalars in history[-2 * window :]]
        before, after = sum(values[:window]), sum(values[window:])
        if not abs(after - before) <= game.tolerance * abs(before):  # unknown, it has not come
            return False
    return True


# A client's strategy g_i(t) = (α_i, η_i): which factors it chooses, and from what range.


class WholeRanges:
    """Learning rates on a logarithmic scale, every number of epochs as likely.

    Args:
        settings: of the paper.

    Attributes:
        n_action: numbers in an action; 0 where nothing is left to choose.
    """

    def __init__(self, settings: Settings) -> None:
        self.train, self.game = settings.train, settings.game
        self.tunes_lr, self.tunes_epochs = settings.tunes_lr, settings.tunes_epochs
        self.n_action = int(self.tunes_lr) + int(self.tunes_epochs)

    def choose(self, raw: Tensor, warm: Tensor, key: Key) -> Tensor:
        """Turn raw actions ``(C, n_action)`` in [-1, 1] into what is played and remembered.

        Args:
            raw: of the agents.
            warm: ``(C,)`` bool, agents that still act at random.
            key: one key an agent.
        """
        return raw

    def read(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rates ``(C,)`` and numbers of epochs ``(C,)`` int64 of actions."""
        lr = action.new_full((len(action),), self.train.lr)
        epochs = torch.full((len(action),), self.train.epochs)
        if self.tunes_lr:
            lr = self._lr(action[:, 0])
        if self.tunes_epochs:
            epochs = self._epochs(action[:, -1])
        return lr, epochs

    def _lr(self, action: Tensor) -> Tensor:
        return Logarithmic(self.game.lr_min, self.train.lr)(action)

    def _epochs(self, action: Tensor) -> Tensor:
        return Integers(self.game.epochs_min, self.train.epochs)(action)


class ClippedRanges(WholeRanges):
    """What PAGE's public code does (ivy-h7/PAGE), whose maps do not cover their ranges.

    (raw + 1)/2 is clipped to the range of the learning rate, so an actor that starts at 0 gives the
    largest learning rate and number of epochs until it falls below 2·lr_max - 1. What comes of it
    is remembered, not the raw action.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.n_action = 2 if settings.has_leaders else 0

    def choose(self, raw: Tensor, warm: Tensor, key: Key) -> Tensor:
        """Clip and scale to learning rate and epochs as a real number; warm agents draw both."""
        low, high, epochs = self.game.lr_min, self.train.lr, self.train.epochs
        draws = key.uniform(2, dtype=raw.dtype)
        lr = low + draws[:, 0] * (high - low)
        drawn = torch.stack([lr, 1 + (draws[:, 1] * epochs).floor()], dim=1)
        clipped = ((raw + 1) / 2).clamp(low, high) * raw.new_tensor([1.0, epochs / high])
        return torch.where(warm[:, None], drawn, clipped)

    def _lr(self, action: Tensor) -> Tensor:
        # A copy, since the action stays with the client while the learning rate leaves it.
        return action.clone()

    def _epochs(self, action: Tensor) -> Tensor:
        return action.floor().long().clamp(1, self.train.epochs)


def strategies_of(settings: Settings) -> WholeRanges:
    """Choose the maps that the (resolved) settings name."""
    return (ClippedRanges if settings.game.actions == "clipped" else WholeRanges)(settings)
