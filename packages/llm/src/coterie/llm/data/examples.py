"""Examples of next-item prediction, from a split of all users at one point in time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Interactions
from coterie.core.data.interactions.splits import first_of_pair
from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Examples:
    """Histories and the item that came next, n of them.

    Attributes:
        history: n rows of item numbers, oldest first, each of at least one and at most
            ``max_history`` items.
        target: ``(n,)`` int64, the next item.
    """

    history: Ragged
    target: Tensor  # (n,) int64

    def __len__(self) -> int:
        return self.target.numel()

    def take(self, index: Tensor) -> Examples:
        """The examples at the positions ``index``, ``(m,)`` int64."""
        return tree.take(self, index)


@dataclass(frozen=True)
class Queries:
    """Users to recommend to: what they had, what must not be listed, what is to be found.

    Attributes:
        user: ``(n,)`` int64 user numbers.
        history: n rows of item numbers, oldest first, the newest of what the user had.
        seen: n rows, everything the user had: left out of the ranking.
        targets: n rows of distinct items to be found, none of them seen.
    """

    user: Tensor  # (n,) int64
    history: Ragged
    seen: Ragged
    targets: Ragged

    def __len__(self) -> int:
        return self.user.numel()

    def take(self, index: Tensor) -> Queries:
        """The users at the positions ``index``, ``(m,)`` int64."""
        return tree.take(self, index)


@dataclass(frozen=True)
class OwnData:
    """Data of one organisation; see `OrganisationData`."""

    id: int
    train: Examples
    valid: Queries
    test: Queries
    had: Tensor
    newer: Tensor


@dataclass(frozen=True)
class OrganisationData:
    """Data of K organisations, each of which is a client; in list form.

    Attributes:
        ids: ``(K,)`` int64, ascending client numbers.
        train: examples of each; may be none.
        valid: validation queries of each; may be none.
        test: test queries of each; may be none.
        had: ``(m,)`` int64 of each, the train items of its users, one entry an interaction.
        newer: the same of what they had since, before the test.
    """

    ids: Tensor
    train: list[Examples]
    valid: list[Queries]
    test: list[Queries]
    had: list[Tensor]
    newer: list[Tensor]

    def __len__(self) -> int:
        return self.ids.numel()

    def __getitem__(self, place: int) -> OwnData:
        """Data of the client at a position."""
        return OwnData(int(self.ids[place]), *(part[place] for part in self._parts))

    def take(self, index: Tensor) -> OrganisationData:
        """Data of the clients at the positions ``index``, ``(m,)`` int64."""
        parts: Any = ([part[c] for c in index.tolist()] for part in self._parts)
        return OrganisationData(self.ids[index], *parts)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.train, self.valid, self.test, self.had, self.newer


# Train, validation and test by one point in time for all users (PPLR, section 4.1.1).

Period = Literal["train", "newer"]
"""Before validation; or since then, before the test."""
_PARTS = {TRAIN: "training", VALID: "validation", TEST: "test"}


@dataclass(frozen=True)
class GlobalSplit:
    """Items of all users before, between and after the two cuts.

    No item is twice in a row, nor in two parts of the same user.

    Attributes:
        train: one row a user number, item numbers in order of time; may be empty.
        valid: the same between the cuts.
        test: the same after the second cut.
    """

    train: Ragged
    valid: Ragged
    test: Ragged

    @property
    def n_users(self) -> int:
        """Number of user numbers, those without an item in some part included."""
        return len(self.train)

    def before_test(self) -> Ragged:
        """Items of train and validation, one row a user, in order of time."""
        return self.train.beside(self.valid)


def global_split(interactions: Interactions, key: Key) -> GlobalSplit:
    """Cut all interactions at the 80 % and the 90 % quantile of time.

    An item that a user touches several times counts once, at its first time, before the cuts are
    made. Interactions of the same time are in a random order which depends on ``key`` and on the
    original ids, not on the order of the file. Where the source comes in parts of its own
    (``Interactions.split``), these are kept.

    Raises:
        UserError: without timestamps, or if a part would be empty.
    """
    order = _in_time(interactions, key)
    user, item = interactions.user[order], interactions.item[order]
    first = first_of_pair(user, item, interactions.n_items)
    order, user, item, n = order[first], user[first], item[first], first.numel()
    if interactions.split is None:
        place = torch.arange(n)
        part = (place >= n * 8 // 10).long() + (place >= n * 9 // 10)
    else:
        part = interactions.split[order]
    for number, name in _PARTS.items():
        if not bool((part == number).any()):
            raise UserError(
                f"{interactions.source} has only {n} interactions, none of them for the {name} "
                "part: use more data, or a smaller --data.min_interactions"
            )
    chosen = (part == number for number in _PARTS)
    rows = (Ragged.from_pairs(user[c], item[c], interactions.n_users) for c in chosen)
    return GlobalSplit(*rows)


def _in_time(interactions: Interactions, key: Key) -> Tensor:
    """Rows in order of time, ``(n,)`` int64; those of the same time at random."""
    time = interactions.time
    if interactions.split is None:
        time = interactions.require_time("the split by global time")
    users, items = _hashes(interactions.user_names), _hashes(interactions.item_names)
    draw = key.fold("ties").fold(users).take(interactions.user).bits(items[interactions.item])
    order = torch.argsort(draw, stable=True)
    return order[torch.argsort(time[order], stable=True)]


def _hashes(names: list[str]) -> Tensor:
    return torch.tensor([zlib.crc32(name.encode()) for name in names], dtype=torch.int64)


def training_examples(
    rows: Ragged,
    max_history: int = 10,
    stride: int = 1,
    span: int | None = None,
    min_history: int | None = None,
) -> tuple[Examples, Tensor]:
    """Make the examples of next items of every user.

    The targets of a user with n items are at the positions min(min_history, n - 1) to n - 1, or
    every ``stride``-th of them counted back from the last; the history is what comes right before,
    up to ``span`` items. A user with fewer than 2 items gives no example.

    Args:
        rows: one row a user, items in order of time.
        max_history: most items of a history that a backbone reads.
        stride: distance between two targets of a user; 1 in the paper.
        span: longest history, of which `thinned` draws ``max_history`` items; default the same.
        min_history: default ``max_history``, as in the public code; 1 makes every item but the
            first a target.

    Returns:
        The examples by ascending user and position, and the user of each, ``(n,)`` int64.

    Example:
        >>> examples, user = training_examples(Ragged.from_lists([[5, 6, 7, 8], [9]]), 2)
        >>> examples.history.tolists(), examples.target.tolist(), user.tolist()
        ([[5, 6], [6, 7]], [7, 8], [0, 0])
    """
    least = max_history if min_history is None else min_history
    if not 1 <= least <= max_history or stride < 1:
        raise UserError(
            f"histories of {least} to {max_history} items and a stride of {stride}: choose at "
            "least 1 for each, and the shortest not above the longest"
        )
    last = rows.lengths - 1
    count = torch.where(last < 1, 0, (last - last.clamp(max=least)) // stride + 1)
    user = torch.repeat_interleave(torch.arange(len(rows)), count)
    place = Ragged.from_lengths(user, count).positions
    position = last[user] - stride * (count[user] - 1 - place)
    target = rows.offsets[user] + position
    history = _slices(rows.values, target, position.clamp(max=span or max_history))
    return Examples(history, rows.values[target]), user


def evaluation_queries(
    split: GlobalSplit, part: Literal["valid", "test"], max_history: int = 10
) -> Queries:
    """Ask for the items that users touched in a part, by what they had before it.

    What a user had is train, for the test also validation. Left out are users who had nothing, and
    those who touched nothing in the part.
    """
    if part == "valid":
        return _queries(split.train, split.valid, max_history)
    return _queries(split.before_test(), split.test, max_history)


def thinned(examples: Examples, keep: int, key: Key) -> Examples:
    """Draw ``keep`` items of every longer history, in their order.

    Short sequences that leave items out are more of the same data for a small backbone: in one
    sitting the order of neighbours means little.
    """
    history = examples.history
    if int(history.lengths.max()) <= keep if len(history) else True:
        return examples
    number = torch.arange(history.values.numel())
    drawn = torch.argsort(key.bits(number), stable=True)
    drawn = drawn[torch.argsort(history.rows[drawn], stable=True)]  # by row, at random within
    chosen = drawn[history.positions < keep].sort().values
    kept = Ragged.from_lengths(history.values[chosen], history.lengths.clamp(max=keep))
    return Examples(kept, examples.target)


def newest(rows: Ragged, max_history: int) -> Ragged:
    """Keep the last ``max_history`` items of every row."""
    return _slices(rows.values, rows.offsets[1:], rows.lengths.clamp(max=max_history))


def emptied(rows: Ragged, kept: Tensor) -> Ragged:
    """Rows without items where ``kept``, ``(C,)`` bool, is false.

    Example:
        >>> emptied(Ragged.from_lists([[1, 2], [3]]), torch.tensor([False, True])).tolists()
        [[], [3]]
    """
    return Ragged.from_lengths(rows.values[kept[rows.rows]], torch.where(kept, rows.lengths, 0))


def _queries(seen: Ragged, targets: Ragged, max_history: int) -> Queries:
    user = torch.nonzero((seen.lengths > 0) & (targets.lengths > 0)).flatten()
    seen = seen.take(user)
    return Queries(user, newest(seen, max_history), seen, targets.take(user))


def _slices(values: Tensor, end: Tensor, lengths: Tensor) -> Ragged:
    """Rows ``values[end - lengths:end]``, copied into a new Ragged."""
    places = Ragged.from_lengths((end - lengths).repeat_interleave(lengths), lengths)
    return Ragged(values[places.values + places.positions], places.offsets)
