"""Examples and queries of users, made from a split."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.data.examples import Examples, Queries
from coterie.llm.data.split import GlobalSplit


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
