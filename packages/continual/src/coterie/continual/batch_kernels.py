"""The kernel that draws one pass of local batches, a user at a time (`continual.batches`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.core.kernels.compiled import compiled
from coterie.core.kernels.drawing import draw_row, place_row


@compiled
def draw_pass(
    keys: Any,
    values: Any,
    offsets: Any,
    sizes: Any,
    attempts: Any,
    n_samples: Any,
    rank: Any,
    starts: Any,
    firsts: Any,
    in_order: Any,
) -> Any:
    """Draw the samples of one pass, ``(S,)`` int32, as ``2 * item + label`` by term.

    Args:
        keys: of negatives, of places and of dealing, ``(C,)`` uint64 each.
        values: positives of all users, end to end.
        offsets: ``(C + 1,)`` first positive of each.
        sizes: items, negatives for each positive, samples in a batch.
        attempts: of a negative and of a place.
        n_samples: ``(C,)`` samples of each user.
        rank: ``(C,)`` place of each among its batch numbers' terms.
        starts: first term of each batch number.
        firsts: first sample of each term.
        in_order: see `draw_samples`.
    """
    n_items, per_positive, batch = sizes
    packed = np.empty(firsts[-1], np.int32)
    known, free = np.zeros(n_items, np.bool_), np.empty(n_items, np.int64)
    most = n_samples.max() + 1 if n_samples.size else 0
    drawn, place = np.empty(most, np.int64), np.empty(most, np.int64)
    waiting = np.empty(most, np.int64)
    holder = np.zeros(most, np.int32)
    for user in range(rank.size):
        mine = values[offsets[user] : offsets[user + 1]]
        total, count = n_samples[user], mine.size
        if total > count:
            for item in mine:
                known[item] = True
            draw_row(keys[0][user], count, per_positive, attempts[0], known, free, drawn)
            for item in mine:
                known[item] = False
        own = holder[:total]
        if in_order or total > batch:
            own[:] = 0
            place_row(keys[1][user], keys[2][user], count, attempts[1], own, place, waiting)
        spots = (starts, firsts, rank[user], batch)
        if in_order:
            _by_place(mine, drawn, own, spots, packed)
        else:
            _positives_first(mine, drawn, place, total, spots, packed)
    return packed


@compiled
def _by_place(mine: Any, drawn: Any, holder: Any, spots: Any, packed: Any) -> None:
    """Write one user's samples where they stand; negatives stand where no positive does."""
    starts, firsts, rank, batch = spots
    number = 0
    for begin in range(0, holder.size, batch):
        first = firsts[starts[begin // batch] + rank]
        for spot in range(begin, min(begin + batch, holder.size)):
            element = holder[spot]  # one more than a positive's number; no branch on it
            positive = 2 * mine[max(element - 1, 0)] + 1
            packed[first + spot - begin] = positive if element else 2 * drawn[number]
            number += element == 0


@compiled
def _positives_first(
    mine: Any, drawn: Any, place: Any, total: Any, spots: Any, packed: Any
) -> None:
    """Write one user's samples into their batches, in each the positives first."""
    starts, firsts, rank, batch = spots
    filled = np.zeros((total + batch - 1) // batch, np.int64)
    for number in range(mine.size):
        b = place[number] // batch if filled.size > 1 else 0
        packed[firsts[starts[b] + rank] + filled[b]] = 2 * mine[number] + 1
        filled[b] += 1
    number = 0
    for b in range(filled.size):
        first = firsts[starts[b] + rank]
        for spot in range(filled[b], min(batch, total - b * batch)):
            packed[first + spot] = 2 * drawn[number]
            number += 1
