"""The one in-memory form of a data set: who touched what, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.appearance import by_first_appearance
from coterie.core.tensors.masks import where_true

TRAIN, VALID, TEST = range(3)
_BY_ROW = ("user", "item", "time", "rating", "split")
_BY_ITEM = ("item_names", "titles", "genres", "brands", "domains")


@dataclass(frozen=True, eq=False)
class Features:
    """What is known of every user (or item), one row each.

    Attributes:
        values: ``(n, d)`` float32.
        names: of the d columns.
    """

    values: Tensor  # (n, d) float32
    names: list[str]

    def take(self, index: Tensor) -> Features:
        """Rows ``index``, ``(m,)`` int64, in that order."""
        return replace(self, values=self.values[index])


@dataclass(frozen=True, eq=False)
class Interactions:
    """User-item interactions, one a row, with the original names beside the numbers.

    Attributes:
        user: ``(n,)`` int64 user numbers, below ``n_users``.
        item: ``(n,)`` int64 item numbers, below ``n_items``.
        time: ``(n,)`` int64 in the source's own unit; only the order counts. A source without
            times has the same number (0) in every row, see `require_time`.
        rating: ``(n,)`` float32, all above 0, or None.
        user_names: original id of every user number.
        item_names: original id of every item number.
        titles: title of every item number, or None.
        genres: genres of every item number, or None.
        source: where the rows come from, for messages and reports.
        split: ``(n,)`` int64, the parts that the source itself comes in (`TRAIN`, `VALID`,
            `TEST`), or None for almost all sources.
        brands: brand of every item number ("" where it is not known), or None.
        positions: ``time`` is no more than the position among the user's own interactions.
        user_features: profile of every user number, or None.
        domains: organisation that has every item number, where the source says so, or None.
    """

    user: Tensor  # (n,) int64
    item: Tensor  # (n,) int64
    time: Tensor  # (n,) int64
    rating: Tensor | None  # (n,) float32
    user_names: list[str]
    item_names: list[str]
    titles: list[str] | None
    genres: list[list[str]] | None
    source: str
    split: Tensor | None = None  # (n,) int64
    brands: list[str] | None = None
    positions: bool = False
    user_features: Features | None = None
    domains: list[str] | None = None

    def __len__(self) -> int:
        return self.user.numel()

    @property
    def n_users(self) -> int:
        """Number of user numbers, those without a row included."""
        return len(self.user_names)

    @property
    def n_items(self) -> int:
        """Number of item numbers, those without a row included."""
        return len(self.item_names)

    def take(self, index: Tensor) -> Interactions:
        """Rows ``index`` (``(m,)`` int64 or ``(n,)`` bool), in that order; numbers stay."""
        rows = where_true(index) if index.dtype == torch.bool else index
        # A third of the time of indexing by brackets.
        return replace(self, **self._each(_BY_ROW, lambda values: values.index_select(0, rows)))

    def renumbered(self) -> Interactions:
        """Number users and items by first appearance in row order; drop those without a row."""
        user, users = by_first_appearance(self.user, self.n_users)
        item, items = by_first_appearance(self.item, self.n_items)
        names = [self.user_names[old] for old in users.tolist()]
        numbers = items.tolist()
        of_items = self._each(_BY_ITEM, lambda values: [values[old] for old in numbers])
        features = self.user_features and self.user_features.take(users)
        return replace(
            self, user=user, item=item, user_names=names, user_features=features, **of_items
        )

    def _each(self, fields: tuple[str, ...], take: Callable[[Any], Any]) -> dict[str, Any]:
        """Take a part of each of some fields that there are."""
        found = {name: getattr(self, name) for name in fields}
        return {name: take(values) for name, values in found.items() if values is not None}

    def require_time(self, purpose: str) -> Tensor:
        """Return ``time`` if it tells rows apart.

        Args:
            purpose: what needs the times, as the beginning of the message.

        Raises:
            UserError: if every row has the same time, as in a file without timestamps, or the
                source knows no more than the order of each user's interactions.
        """
        if self.positions:
            raise UserError(
                f"{purpose} needs timestamps, and {self.source} has only the order of each user's "
                "interactions: use a data set with timestamps"
            )
        if len(self) and bool((self.time == self.time[0]).all()):
            raise UserError(
                f"{purpose} needs timestamps, and {self.source} has none (all are "
                f"{int(self.time[0])}): use a data set with timestamps, or name the column of a "
                "file of yours by --data.columns time=COLUMN"
            )
        return self.time
