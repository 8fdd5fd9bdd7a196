"""Rows that came later become one more block of a stream; what was there before stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import (
    Dropped,
    Interactions,
    staying,
)
from coterie.core.data.interactions.splits import Block, Stream
from coterie.core.errors import UserError
from coterie.core.tensors.ordering import ascending

T = TypeVar("T")
OTHER_UNIT = 100
"""So many times the newest time of before, rows are of another unit, not of another century."""
_LARGE_TIME = 100_000_000  # of seconds: three years


def with_later(stream: Stream, new: Interactions, core: int) -> Stream:
    """Add rows that are later than all others as a last block.

    Known users and items keep their numbers, and no earlier block changes. All rows of known users
    with known items stay; a user or item that is new needs ``core`` rows among the new ones (the
    k-core of these, in which who is known always stays). New users and items are numbered behind
    the others by first appearance in time, as they would be if all rows had been one file.

    Args:
        stream: what was there before.
        new: the rows, after the filters that look at one row alone.
        core: k of the k-core filter.

    Raises:
        UserError: a row is not later than all of before, or none is left; there are no times; or
            nobody and nothing of them is known.

    Example:
        >>> def of(user: str, item: str, time: int) -> Interactions:
        ...     row = torch.zeros(1, dtype=torch.int64)
        ...     return Interactions(row, row, row + time, None, [user], [item], None, None, "file")
        >>> old = Stream(of("ann", "tea", 1), [Block(0, slice(0, 1), 1, 1)])
        >>> grown = with_later(old, of("bob", "tea", 2), core=0)
        >>> grown.interactions.user_names, grown.blocks[1]
        (['ann', 'bob'], Block(index=1, rows=slice(1, 2, None), n_users=2, n_items=1))
    """
    before = stream.interactions
    _check_times(before, new)
    together = _numbered_behind(before, new)
    stays = staying(together, core, before.n_users, before.n_items)
    if not bool(stays.any()):
        raise UserError(
            f"nothing of {new.source} is left: it has neither a row of a user and an item that the "
            f"run knows, nor {core} of a new one; wait for more rows"
        )
    rules = f"of new users or items with fewer than {core} rows there"
    kept = together.without(~stays, f"{rules}, of {new.source}")
    kept = kept.take(ascending(kept.time, int(kept.time.max()) + 1, int(kept.time.min())))
    joined = _behind(before, kept).renumbered()
    last = Block(
        len(stream.blocks), slice(len(before), len(joined)), joined.n_users, joined.n_items
    )
    return Stream(joined, [*stream.blocks, last])


def with_all_had(stream: Stream, sources: Sequence[Interactions]) -> Stream:
    """Note as had besides whatever a user of the stream has in the sources, and not in its rows.

    Args:
        stream: whose users are recommended nothing that they had.
        sources: all rows that were read, before any filter.
    """
    known = stream.interactions
    users, items = _places(known.user_names), _places(known.item_names)
    pairs = [known.user.new_empty(0)]
    for rows in sources:
        user, item = rows.had()
        user = _numbers(rows.user_names, users)[user]
        item = _numbers(rows.item_names, items)[item]
        there = (user >= 0) & (item >= 0)
        pairs.append(user[there] * known.n_items + item[there])
    had = torch.cat(pairs).unique()
    had = had[~torch.isin(had, known.user * known.n_items + known.item)]
    besides = torch.stack([had // known.n_items, had % known.n_items], 1) if len(had) else None
    return Stream(replace(known, besides=besides), stream.blocks)


def _check_times(before: Interactions, new: Interactions) -> None:
    """Refuse rows that are not later than all of before."""
    if new.positions or not bool(new.time.any()):
        new.require_time("adding rows to a run")
    newest = int(before.time.max())
    late = new.time <= newest
    if bool(late.any()):
        raise UserError(_not_later(before, new, late, newest))
    if newest >= _LARGE_TIME and int(new.time.min()) >= OTHER_UNIT * newest:
        raise UserError(
            f"the times of {new.source} are of another unit than those of {before.source}: they "
            f"begin at {int(new.time.min())}, and these end at {newest}; write them in the same one"
        )


def _not_later(before: Interactions, new: Interactions, late: Tensor, newest: int) -> str:
    row = int(late.nonzero()[0])
    user, item = new.user_names[int(new.user[row])], new.item_names[int(new.item[row])]
    count = int(late.sum())
    rows = f"{count:,} of {len(new):,} rows of {new.source}"
    if _had_all(before, new.take(late)):
        return (
            f"{rows} are in the run already, as that of user '{user}' and item '{item}': leave "
            f"those out, and add what came later than time {newest}"
        )
    return (
        f"{rows} are not later than the newest row of the run, of time {newest}, as that of user "
        f"'{user}' and item '{item}' at {int(new.time[row])}: leave them out, or train anew on all"
    )


def _had_all(before: Interactions, rows: Interactions) -> bool:
    """Whether the same user, item and time are all there already."""

    def said(data: Interactions) -> set[tuple[str, str, int]]:
        return {
            (data.user_names[user], data.item_names[item], time)
            for user, item, time in zip(
                data.user.tolist(), data.item.tolist(), data.time.tolist(), strict=True
            )
        }

    return said(rows) <= said(before.take(torch.isin(before.time, rows.time)))


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _numbers(names: Sequence[str], place: dict[str, int]) -> Tensor:
    """Number of every name, ``(n,)`` int64; -1 for what has none."""
    return torch.tensor([place.get(name, -1) for name in names], dtype=torch.int64)


def _numbered_behind(before: Interactions, new: Interactions) -> Interactions:
    """The new rows, with the numbers of before for what is known, and further ones behind them."""
    users = _numbers(new.user_names, _places(before.user_names))
    items = _numbers(new.item_names, _places(before.item_names))
    if not bool((users >= 0).any()) and not bool((items >= 0).any()):
        some = f"'{new.user_names[0]}' and '{new.item_names[0]}'"
        own = f"'{before.user_names[0]}' and '{before.item_names[0]}'"
        raise UserError(
            f"no user and no item of {new.source} is known to the run: it has ids as {some}, the "
            f"run as {own}; write them alike, or start a new run without --resume"
        )
    fresh_users, fresh_items = ((of < 0).nonzero().flatten().tolist() for of in (users, items))
    users[users < 0] = before.n_users + torch.arange(len(fresh_users))
    items[items < 0] = before.n_items + torch.arange(len(fresh_items))

    def of_items(
        old: list[T] | None, found: list[T] | None, unknown: Callable[[str], T]
    ) -> list[T] | None:
        if old is None and found is None:
            return None
        first = [unknown(name) for name in before.item_names] if old is None else old
        if found is None:
            return [*first, *(unknown(new.item_names[place]) for place in fresh_items)]
        return [*first, *(found[place] for place in fresh_items)]

    return replace(
        new,
        user=users[new.user],
        item=items[new.item],
        user_names=[*before.user_names, *(new.user_names[place] for place in fresh_users)],
        item_names=[*before.item_names, *(new.item_names[place] for place in fresh_items)],
        titles=of_items(before.titles, new.titles, str),
        genres=of_items(before.genres, new.genres, lambda _: []),
        brands=of_items(before.brands, new.brands, lambda _: ""),
        domains=of_items(before.domains, new.domains, lambda _: ""),
        split=None,
        user_features=None,
        dropped=tuple(replace(one, why=f"{one.why}, of {new.source}") for one in new.dropped),
        besides=None,
    )


def _behind(before: Interactions, kept: Interactions) -> Interactions:
    """The rows of before and then the new ones, which are numbered as `_numbered_behind` does."""
    rated = before.rating is not None and kept.rating is not None
    dropped: tuple[Dropped, ...] = (*before.dropped, *kept.dropped)
    return replace(
        kept,
        user=torch.cat([before.user, kept.user]),
        item=torch.cat([before.item, kept.item]),
        time=torch.cat([before.time, kept.time]),
        rating=torch.cat([before.rating, kept.rating]) if rated else None,  # type: ignore[list-item]
        source=f"{before.source} + {kept.source}",
        dropped=dropped,
        besides=None,
    )
