"""Recommendations as a data frame, and whom and how many are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from coterie.core.errors import UserError
from coterie.core.front.given import of_numpy

if TYPE_CHECKING:
    import pandas as pd

    from coterie.core.run.recommendation_files import Recommendations
    from coterie.core.run.recommender import Recommender

_COLUMNS = {"user": "str", "rank": "int64", "item": "str", "title": "str", "score": "float64"}


def check_top(top: int) -> None:
    """Refuse what is no number of items.

    Raises:
        UserError: it is none.
    """
    if isinstance(top, bool) or not hasattr(top, "__index__") or top < 1:
        raise UserError(f"'top' must be a whole number of at least 1, not {top!r}")


def numbers_of(
    users: str | int | Iterable[str | int] | None, recommender: Recommender
) -> Sequence[int]:
    """Numbers of the users that are asked for, each once.

    Raises:
        UserError: one is unknown.
    """
    if users is None:
        return range(recommender.data.n_users)
    asked = [users] if isinstance(of_numpy(users), str | int) else users
    if not isinstance(asked, Iterable):
        raise UserError(f"'users' must be ids of users, as [42, 43], not {users!r}")
    return [recommender.number(name) for name in dict.fromkeys(map(str, asked))]


def frame_of(tables: Sequence[Recommendations], recommender: Recommender) -> pd.DataFrame:
    """Recommendations as a data frame, with titles."""
    import numpy as np
    import pandas as pd

    titles = recommender.data.titles
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for each in tables:
        of_each = each.columns()
        of_each["title"] = [titles[place] if titles else "" for place in each.item.tolist()]
        for name, values in columns.items():
            values += of_each[name]
    # A frame of ten rows costs as much as their scores: one look at what text is, and no copies.
    text = pd.api.types.pandas_dtype("str")
    arrays: dict[str, Any] = {}
    for name, kind in _COLUMNS.items():
        given = columns[name]
        arrays[name] = pd.array(given, dtype=text) if kind == "str" else np.array(given, kind)
    return pd.DataFrame(arrays, index=pd.RangeIndex(len(columns["user"])), copy=False)
