"""Train, validation and test rows of every user within one block."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.blocks import Block, Stream
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.ragged import Ragged

Order = Literal["random", "chronological"]
Ties = Literal["random", "file"]


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
    users, client = torch.unique(user, return_inverse=True)
    first = first_of_pair(client, item, block.n_items)
    rows = Ragged.from_pairs(client[first], item[first], users.numel())
    key = Key.from_seed(seed).fold("split", block.index)
    if order == "random":
        rank = _shuffled(rows, users, key)
    elif ties == "file":
        rank = rows.positions
    else:
        time = stream.interactions.require_time("splitting by time")[block.rows]
        when = Ragged.from_pairs(client[first], time[first], users.numel()).values
        rank = _shuffled(rows, users, key, when)
    n_train, n_valid = (counts[rows.rows] for counts in _counts(rows.lengths))
    valid_or_test = rank >= n_train
    test = rank >= n_train + n_valid
    return UserRows(
        users,
        _part(rows, ~valid_or_test),
        _part(rows, valid_or_test & ~test),
        _part(rows, test),
    )


def split_users(interactions: Interactions, order: Order, seed: int) -> UserRows:
    """Split the items of every user 80/10/10, where there is no stream: all is one block.

    Arguments as for `split_block`; the numbers of the users are those of the clients.

    Example:
        >>> user, item = torch.zeros(10, dtype=torch.int64), torch.arange(10)
        >>> names = [str(number) for number in range(10)]
        >>> data = Interactions(user, item, item, None, ["me"], names, None, None, "ten items")
        >>> users = split_users(data, "chronological", seed=0)
        >>> users.train.tolists(), users.valid.tolists(), users.test.tolists()
        ([[0, 1, 2, 3, 4, 5, 6, 7]], [[8]], [[9]])
    """
    whole = Block(0, slice(0, len(interactions)), interactions.n_users, interactions.n_items)
    return split_block(Stream(interactions, [whole]), whole, order, seed)


def _counts(n: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of train and validation items of users with n items, each ``(C,)``."""
    test = (n + 9) // 10
    valid = (n - test + 8) // 9
    split = n >= 3
    return torch.where(split, n - test - valid, n), torch.where(split, valid, 0)


def first_of_pair(client: Tensor, item: Tensor, n_items: int) -> Tensor:
    """Ascending row numbers of the first occurrence of every (client, item).

    Args:
        client: ``(n,)`` int64.
        item: ``(n,)`` int64 of its items.
        n_items: above all of them.
    """
    pair = client * n_items + item
    ordered, order = torch.sort(pair, stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return order[new].sort().values


def _shuffled(rows: Ragged, users: Tensor, key: Key, time: Tensor | None = None) -> Tensor:
    """Place of every item in its user's order, ``(n,)`` int64: low ones go to train.

    The order is random or, with ``time`` ``(n,)``, random among the items of the same time.
    """
    keys = key.fold(users).take(rows.rows)
    order = shuffle_rows(keys, rows.rows, rows.positions)
    if time is not None:
        order = order[torch.argsort(time[order], stable=True)]
        order = order[torch.argsort(rows.rows[order], stable=True)]
    rank = torch.empty_like(order)
    rank[order] = rows.positions
    return rank


def _part(rows: Ragged, chosen: Tensor) -> Ragged:
    return Ragged.from_pairs(rows.rows[chosen], rows.values[chosen], len(rows))
