"""Train, validation and test rows of every user within one block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.blocks import Block, Stream
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.tensors.appearance import by_number
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.masks import where_true
from coterie.core.tensors.ordering import ascending
from coterie.core.tensors.ragged import Ragged

Order = Literal["random", "chronological"]
Ties = Literal["random", "file"]

_CHUNK = 1 << 19  # interactions that are split at a time


def split_block(
    stream: Stream, block: Block, order: Order, seed: int, ties: Ties = "random"
) -> UserRows:
    """Split the items of the users of a block 80/10/10; rows are in order of time.

    An item that a user touches several times in the block counts once, at its first time, so no
    train item is ever a validation or test item of the same user and block. Of a user's n items
    the test gets ceil(n / 10), validation ceil((n - test) / 9), train the rest; a user with fewer
    than 3 has them all in train. This rounding gives the counts of the public F³CRec data.

    Args:
        stream: what the block is cut from.
        block: one of ``stream.blocks``.
        order: "chronological": the last items are the test, those before them validation;
            "random": drawn by a key of (seed, block, user), so that no user's split depends on
            the other users.
        seed: of everything random.
        ties: how a chronological split orders a user's items of the same time. As in the file, a
            file that is sorted by item puts its last items into the test.
    """
    user = stream.interactions.user[block.rows]
    item = stream.interactions.item[block.rows]
    users, client = by_number(user, block.n_users)
    lengths = torch.bincount(client, minlength=users.numel())
    by_user = ascending(client, users.numel())
    del client
    items = Ragged.from_lengths(item.index_select(0, by_user), lengths)
    when = None
    if order == "chronological" and ties == "random":
        time = stream.interactions.require_time("splitting by time")[block.rows]
        when = time.index_select(0, by_user)
    del by_user
    key = Key.from_seed(seed).fold("split", block.index).fold(users)
    chunks = [
        _split_rows(
            Ragged.from_lengths(items.values[places], lengths[first:last]),
            block.n_items,
            None if order == "chronological" and ties == "file" else Key(key.state[first:last]),
            None if when is None else when[places],
        )
        for first, last, places in _chunks(items.offsets)
    ]
    return UserRows(users, *(Ragged.end_to_end(parts) for parts in zip(*chunks, strict=True)))


def _counts(n: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of train and validation items of users with n items, each ``(C,)``."""
    test = (n + 9) // 10
    valid = (n - test + 8) // 9
    split = n >= 3
    return torch.where(split, n - test - valid, n), torch.where(split, valid, 0)


def first_of_pair(client: Tensor, item: Tensor, n_items: int) -> Tensor:
    """Ascending row numbers of the first occurrence of every (client, item), each ``(n,)``."""
    pair = client * n_items + item
    if pair.numel() and int(pair.max()) <= torch.iinfo(torch.int32).max:
        pair = pair.int()  # sorted in half the time
    ordered, order = torch.sort(pair, stable=True)
    again = where_true(ordered[1:] == ordered[:-1]) + 1
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[order.index_select(0, again)] = False
    return where_true(first)


def _chunks(offsets: Tensor) -> Iterator[tuple[int, int, slice]]:
    """Cut rows into chunks whose sorts stay in the cache: first row, last row + 1, their values."""
    first, n_rows = 0, offsets.numel() - 1
    if not n_rows:
        yield 0, 0, slice(0, 0)
    while first < n_rows:
        start = int(offsets[first])
        last = int(torch.searchsorted(offsets, start + _CHUNK, right=True)) - 1
        last = min(max(last, first + 1), first + _CHUNK, n_rows)
        yield first, last, slice(start, int(offsets[last]))
        first = last


def _split_rows(
    items: Ragged, n_items: int, keys: Key | None, time: Tensor | None
) -> tuple[Ragged, Ragged, Ragged]:
    """Split the items of some users.

    Args:
        items: of each user in the order of the file, repeated ones too.
        n_items: above all of them.
        keys: one a user, of the order of items (of the same time, if there are times); None for
            the order of the file.
        time: ``(n,)`` int64 time of every item, or None.
    """
    first = first_of_pair(items.rows, items.values, n_items)
    kept = items.rows.index_select(0, first)
    lengths = torch.bincount(kept, minlength=len(items))
    rows = Ragged.from_lengths(items.values.index_select(0, first), lengths)
    rank = rows.positions
    if keys is not None:
        rank = _shuffled(rows, keys, None if time is None else time.index_select(0, first))
    n_train, n_valid = _counts(lengths)
    tested = rank >= (n_train + n_valid).index_select(0, kept)
    later = rank >= n_train.index_select(0, kept)
    parts = (~later, later & ~tested, tested)
    sizes = (n_train, n_valid, lengths - n_train - n_valid)
    train, valid, test = (
        Ragged.from_lengths(rows.values.index_select(0, where_true(part)), size)
        for part, size in zip(parts, sizes, strict=True)
    )
    return train, valid, test


def _shuffled(rows: Ragged, keys: Key, time: Tensor | None) -> Tensor:
    """Place of every item in its user's order, ``(n,)`` int64: low ones go to train.

    The order is random or, with ``time`` ``(n,)``, random among the items of the same time.
    """
    order = shuffle_rows(keys.take(rows.rows), rows.rows, rows.positions)
    if time is not None:
        order = order.index_select(0, torch.argsort(time.index_select(0, order), stable=True))
        by_row = ascending(rows.rows.index_select(0, order), len(rows))
        order = order.index_select(0, by_row)
    rank = torch.empty_like(order)
    rank[order] = rows.positions
    return rank
