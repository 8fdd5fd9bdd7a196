"""Blocks in time, and the train, validation and test rows of every user within one block.

A stream of blocks is the setting of continual recommendation (F³CRec, section 5.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.ordering import ascending, by_number, where_true
from coterie.core.tensors.stacked import Ragged

FRACTIONS = (0.6, 0.4 / 3, 0.4 / 3)


@dataclass(frozen=True)
class Block:
    """One block of a stream.

    Attributes:
        index: t, the base block is 0.
        rows: the block's rows in ``Stream.interactions``.
        n_users: users seen up to the end of this block.
        n_items: items seen up to the end of this block.
    """

    index: int
    rows: slice
    n_users: int
    n_items: int

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start


@dataclass(frozen=True)
class Stream:
    """Interactions in order of time, cut into blocks; numbers are given by first appearance."""

    interactions: Interactions
    blocks: list[Block]

    def statistics(self) -> list[dict[str, int | float]]:
        """Tabulate the blocks as the F³CRec paper's Table 1 does.

        Returns:
            One row a block: ``block``, accumulated ``users`` and ``items``, ``interactions`` of the
            block alone, ``sparsity`` = 1 - interactions / (users * items), and ``repeats``.
        """
        return [
            {
                "block": block.index,
                "users": block.n_users,
                "items": block.n_items,
                "interactions": len(block),
                "sparsity": 1.0 - len(block) / (block.n_users * block.n_items),
                "repeats": repeats,
            }
            for block, repeats in zip(self.blocks, self.repeats(), strict=True)
        ]

    def repeats(self) -> list[float]:
        """Give, for each block, the share of its interactions with what their user had before it.

        Where it is above 0 people want the same things again, and leaving these out of a
        recommendation costs what they would have found.
        """
        data = self.interactions
        pair = data.user * data.n_items + data.item
        blocks = [block.rows for block in self.blocks]
        again = [torch.isin(pair[rows], pair[: rows.start]) for rows in blocks]
        return [float(those.double().mean()) for those in again]


def temporal_blocks(interactions: Interactions, fractions: Sequence[float] = FRACTIONS) -> Stream:
    """Cut the interactions into blocks by time.

    Rows are sorted by time; **rows of the same time keep the order of the file** (a stable sort).
    Users and items are then numbered by first appearance, and the rows cut by count: block t gets
    ``int(fractions[t] * n)`` rows, a last block the rest. The cut may fall between rows of the same
    time.

    Args:
        interactions: usually after `coterie.core.data.interactions.interactions.k_core`.
        fractions: of all blocks but the last, each above 0, sum below 1.

    Raises:
        UserError: without timestamps, with impossible fractions, or if a block would be empty.
    """
    if not fractions or min(fractions) <= 0 or sum(fractions) >= 1:
        raise UserError(f"fractions {list(fractions)} of the blocks must be positive, sum below 1")
    time = interactions.require_time("cutting blocks")
    if bool((time[1:] < time[:-1]).any()):
        order = ascending(time, int(time.max()) + 1, int(time.min()))
        interactions = interactions.take(order)
    ordered = interactions.renumbered()
    n = len(ordered)
    sizes = [int(fraction * n) for fraction in fractions]
    if min(sizes) == 0:
        raise UserError(f"{ordered.source} has only {n} interactions: too few for its blocks")
    ends = torch.tensor([*sizes, n - sum(sizes)]).cumsum(0).tolist()
    # Numbers are given by first appearance, so the highest number seen is the count seen.
    users = [int(ordered.user[:end].max()) + 1 for end in ends]
    items = [int(ordered.item[:end].max()) + 1 for end in ends]
    blocks = [
        Block(t, slice(start, end), n_users, n_items)
        for t, (start, end, n_users, n_items) in enumerate(
            zip([0, *ends[:-1]], ends, users, items, strict=True)
        )
    ]
    return Stream(ordered, blocks)


def earlier_items(stream: Stream, block: Block, users: Tensor) -> Ragged:
    """List what users had in the blocks before one, each item once, in ascending order.

    Args:
        stream: what the block is cut from.
        block: one of ``stream.blocks``.
        users: ``(C,)`` ascending user numbers.

    Returns:
        C rows of item numbers.
    """
    past = slice(0, block.rows.start)
    user, item = stream.interactions.user[past], stream.interactions.item[past]
    theirs = torch.isin(user, users)
    client = torch.searchsorted(users, user[theirs])
    pair = torch.unique(client * block.n_items + item[theirs])
    return Ragged.from_pairs(pair // block.n_items, pair % block.n_items, users.numel())


# Items of users who are clients: all that each of them may read.


@dataclass(frozen=True)
class UserRows:
    """Items of C users, split; in a stream, of the current block only.

    Attributes:
        ids: ``(C,)`` int64, ascending user numbers.
        train: item numbers of each user.
        valid: the same for validation.
        test: the same for the test.
        earlier: items of earlier blocks, for a measurement that leaves them out; no step of
            training may read them. None where there are no blocks, or where it is not measured.
    """

    ids: Tensor
    train: Ragged
    valid: Ragged
    test: Ragged
    earlier: Ragged | None = None

    def take(self, index: Tensor) -> UserRows:
        """Data of the users at the positions ``index``, ``(K,)`` int64."""
        return UserRows(
            self.ids[index],
            self.train.take(index),
            self.valid.take(index),
            self.test.take(index),
            None if self.earlier is None else self.earlier.take(index),
        )


# Train, validation and test rows of every user within one block.

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
