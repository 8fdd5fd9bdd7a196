"""When a game counts as having come to rest: W and w_i stop evolving (section 4.4)."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.page.settings.run import GameSettings

UTILITIES = ("page/reward_server", "page/reward_clients")


def settled(history: Sequence[dict[str, float]], game: GameSettings) -> bool:
    """Say whether no mean utility moved from one window of rounds to the next.

    Args:
        history: scalars of the rounds so far, oldest first.
        game: window ``patience`` and ``tolerance``.

    Example:
        >>> still = [{"page/reward_server": 0.5, "page/reward_clients": 0.7}] * 8
        >>> settled(still, GameSettings(patience=4)), settled(still, GameSettings(patience=5))
        (True, False)
    """
    window = game.patience
    if len(history) < 2 * window:
        return False
    for name in UTILITIES:
        values = [scalars.get(name) for scalars in history[-2 * window :]]
        if any(value is None for value in values):
            return False
        before, after = sum(values[:window]), sum(values[window:])  # type: ignore[arg-type]
        if not abs(after - before) <= game.tolerance * abs(before):
            return False
    return True
