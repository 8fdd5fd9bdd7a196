"""The one in-memory form of a data set: who touched what and when, and what filters leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.ordering import by_first_appearance, where_true


@dataclass(frozen=True)
class Dropped:
    """What one filter left out.

    Attributes:
        why: what the rows are, as ``rated below 4``.
        rows: how many went.
        of: how many there were before.
        users: users who have no row left by it.
        items: items that have no row left by it.
    """

    why: str
    rows: int
    of: int
    users: int = 0
    items: int = 0

    def __str__(self) -> str:
        """Say it in one line.

        Example:
            >>> str(Dropped("rated below 4", 1200, 3000, users=2, items=1))
            'left out: 1,200 of 3,000 rows, rated below 4 (2 users and 1 item have none left)'
        """
        gone = [_counted(self.users, "user")] * (self.users > 0)
        gone += [_counted(self.items, "item")] * (self.items > 0)
        have = "has" if self.users + self.items == 1 else "have"
        without = f" ({' and '.join(gone)} {have} none left)" if gone else ""
        return f"left out: {self.rows:,} of {_counted(self.of, 'row')}, {self.why}{without}"


def in_words(dropped: Iterable[Dropped]) -> list[str]:
    """Say what filters left out, a line each, in their order; nothing of one that left all in.

    This is all that commands print and runs keep of it.
    """
    return [str(each) for each in dropped if each.rows]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# The one in-memory form of a data set: who touched what, and when.

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
        rating: ``(n,)`` float32, or None; all above 0, but where ratings are targets.
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
        dropped: what filters left out, in their order.
        besides: ``(m, 2)`` int64 user and item of rows that filters left out: what users had
            besides, and are not recommended. Those of users and items without a row are not there.
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
    dropped: tuple[Dropped, ...] = ()
    besides: Tensor | None = None  # (m, 2) int64

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

    def without(self, left_out: Tensor, why: str) -> Interactions:
        """All rows but some, ``(n,)`` bool; what goes is noted in ``dropped`` and ``besides``.

        Numbers stay; ``why`` is as in `Dropped`.
        """
        gone = where_true(left_out)
        if not gone.numel():
            return self
        kept = self.take(~left_out)
        count = Dropped(why, gone.numel(), len(self), *_absent(self, kept))
        pairs = torch.stack([self.user.index_select(0, gone), self.item.index_select(0, gone)], 1)
        besides = pairs if self.besides is None else torch.cat([self.besides, pairs])
        return replace(kept, dropped=(*self.dropped, count), besides=besides)

    def had(self) -> tuple[Tensor, Tensor]:
        """User and item of all that users had, ``(n + m,)`` each: in the rows and besides."""
        if self.besides is None:
            return self.user, self.item
        user, item = self.besides.unbind(1)
        return torch.cat([self.user, user]), torch.cat([self.item, item])

    def renumbered(self) -> Interactions:
        """Number users and items by first appearance in row order; drop those without a row."""
        user, users = by_first_appearance(self.user, self.n_users)
        item, items = by_first_appearance(self.item, self.n_items)
        names = [self.user_names[old] for old in users.tolist()]
        numbers = items.tolist()
        of_items = self._each(_BY_ITEM, lambda values: [values[old] for old in numbers])
        features = self.user_features and self.user_features.take(users)
        return replace(
            self,
            user=user,
            item=item,
            user_names=names,
            user_features=features,
            besides=self._besides(users, items),
            **of_items,
        )

    def _besides(self, users: Tensor, items: Tensor) -> Tensor | None:
        """Give ``besides`` in new numbers, by the old number of each new one."""
        if self.besides is None:
            return None
        user, item = self.besides.unbind(1)
        pairs = torch.stack(
            [renamed(user, users, self.n_users), renamed(item, items, self.n_items)], 1
        )
        return pairs[(pairs >= 0).all(1)]

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


def renamed(numbers: Tensor, old: Tensor, above: int) -> Tensor:
    """New numbers of what was numbered otherwise, ``(n,)`` int64; -1 for what has none.

    Args:
        numbers: ``(n,)`` old ones.
        old: ``(k,)`` the old number of every new one.
        above: the old numbers' upper end.

    Example:
        >>> renamed(torch.tensor([5, 2, 3]), torch.tensor([3, 5]), 6).tolist()
        [1, -1, 0]
    """
    place = torch.full((above,), -1)
    place[old] = torch.arange(old.numel())
    return place[numbers.long()]


def _absent(before: Interactions, after: Interactions) -> tuple[int, int]:
    """Count users and items that have a row before, and none after."""

    def present(numbers: Tensor, above: int) -> int:
        return int((torch.bincount(numbers, minlength=above) > 0).sum())

    users, items = before.n_users, before.n_items
    return (
        present(before.user, users) - present(after.user, users),
        present(before.item, items) - present(after.item, items),
    )


# The k-core filter.


def k_core(interactions: Interactions, k: int) -> Interactions:
    """Keep the largest part in which every user and every item has at least k interactions.

    Users and items below k are dropped in turn until none is left below; rows keep their order,
    numbers are given anew by first appearance. A pair that occurs twice counts twice.

    Raises:
        UserError: if nothing is left, or k is negative.
    """
    if k < 0:
        raise UserError(f"k of the k-core is {k}: choose 0 (no filter) or more")
    stays = staying(interactions, k)
    if not bool(stays.any()):
        raise UserError(
            f"nothing of {interactions.source} is left after the {k}-core: give a smaller "
            "--data.min_interactions"
        )
    why = f"of users or items with fewer than {k} interactions (the {k}-core)"
    return interactions.without(~stays, why).renumbered()


def staying(interactions: Interactions, k: int, users: int = 0, items: int = 0) -> Tensor:
    """Which rows are in the k-core, ``(n,)`` bool.

    Args:
        interactions: of which it is a part.
        k: rows that every user and every item needs.
        users: numbers below it need none.
        items: the same of items.
    """
    user, item = interactions.user, interactions.item
    of_user = torch.bincount(user, minlength=interactions.n_users)
    of_item = torch.bincount(item, minlength=interactions.n_items)
    for count, exempt in ((of_user, users), (of_item, items)):
        count[:exempt] += len(interactions) + k  # above k, whatever goes
    stays = torch.ones(len(interactions), dtype=torch.bool)
    while _some_below(of_user, k) or _some_below(of_item, k):
        # Whoever was dropped has 0 rows left, so a row that went does not come back.
        now = (of_user >= k).index_select(0, user) & (of_item >= k).index_select(0, item)
        gone = where_true(stays & ~now)
        of_user -= torch.bincount(user.index_select(0, gone), minlength=of_user.numel())
        of_item -= torch.bincount(item.index_select(0, gone), minlength=of_item.numel())
        stays = now
    return stays


def _some_below(count: Tensor, k: int) -> bool:
    return bool(((count > 0) & (count < k)).any())
