"""Recommendations as a data frame, and whom and how many are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from coterie.core.errors import UserError
from coterie.core.front.given import of_numpy
from coterie.core.registry.papers import heavy

if TYPE_CHECKING:
    import pandas as pd

    from coterie.core.run.experiment import RecommendsToUsers


def check_top(top: int) -> None:
    """Refuse what is no number of items.

    Raises:
        UserError: it is none.
    """
    if isinstance(top, bool) or not hasattr(top, "__index__") or top < 1:
        raise UserError(f"'top' must be a whole number of at least 1, not {top!r}")


def numbers_of(
    users: str | int | Iterable[str | int] | None, experiment: RecommendsToUsers[Any]
) -> list[int]:
    """Numbers of the users that are asked for, each once.

    Raises:
        UserError: one is unknown.
    """
    data = experiment.interactions
    if users is None:
        return list(range(data.n_users))
    asked = [users] if isinstance(of_numpy(users), str | int) else users
    if not isinstance(asked, Iterable):
        raise UserError(f"'users' must be ids of users, as [42, 43], not {users!r}")
    known = {name: number for number, name in enumerate(data.user_names)}
    find = heavy("coterie.core.run.serving").user_number
    names = dict.fromkeys(map(str, asked))
    return [
        known[name] if name in known else find(name, data, experiment.settings.data)
        for name in names
    ]


def frame_of(columns: dict[str, list[Any]], experiment: RecommendsToUsers[Any]) -> pd.DataFrame:
    """Recommendations as a data frame, with titles."""
    import pandas as pd

    data = experiment.interactions
    titles = dict(zip(data.item_names, data.titles or (), strict=False))
    kinds = {"user": "str", "rank": "int64", "item": "str", "score": "float64"}
    frame = pd.DataFrame(columns).astype(kinds)
    frame.insert(3, "title", [titles.get(item, "") for item in columns["item"]])
    return frame.astype({"title": "str"})
