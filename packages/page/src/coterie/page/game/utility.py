"""Utilities of the players (Definition 1), what biased players share, when a game is at rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.page.settings.run import GameSettings

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
