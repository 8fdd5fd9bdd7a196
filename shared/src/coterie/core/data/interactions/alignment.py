"""What the rows and columns of a matrix of ratings are: users and items, or the reverse."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from coterie.core.data.interactions.genres import genre_table
from coterie.core.data.interactions.interactions import Interactions

Alignment = Literal["user", "item"]


def rows_of(interactions: Interactions, alignment: Alignment) -> tuple[Tensor, int]:
    """Row number of every interaction, ``(n,)`` int64, and the number of rows."""
    if alignment == "user":
        return interactions.user, interactions.n_users
    return interactions.item, interactions.n_items


def columns_of(interactions: Interactions, alignment: Alignment) -> tuple[Tensor, int]:
    """Column number of every interaction, ``(n,)`` int64, and the number of columns."""
    return rows_of(interactions, "item" if alignment == "user" else "user")


def features_of(
    interactions: Interactions, alignment: Alignment
) -> tuple[Tensor | None, Tensor | None]:
    """What is known of rows and of columns, ``(n_rows, d_r)`` and ``(n_columns, d_c)`` float32.

    Of users their profile, of items which of the `GENRES` they have; None where neither is known.
    """
    users = None if interactions.user_features is None else interactions.user_features.values
    items = None if interactions.genres is None else genre_table(interactions.genres)
    if items is not None and not bool(items.any()):
        items = None
    return (users, items) if alignment == "user" else (items, users)
