"""Kernels that draw: the hashes of `coterie.core.tensors.keys.Key`, client by client.

They draw what `sample_negatives` and `distinct_places` draw by tensor operations, bit for bit. Keys
are ``(C,)`` uint64, rows of clients as in `Ragged`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.kernels.compiled import compiled

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_U21, _U27, _U30, _U31, _U32 = (np.uint64(bits) for bits in (21, 27, 30, 31, 32))
_STRIDE = np.uint64(1 << 32)  # between the counters of two attempts


@compiled
def _bits(state: Any, counter: Any) -> Any:
    """`Key.bits` of one uint64 counter."""
    x = state + counter * _GOLDEN + _GOLDEN
    x = (x ^ (x >> _U30)) * _MIX1
    x = (x ^ (x >> _U27)) * _MIX2
    return x ^ (x >> _U31)


@compiled
def _integer(state: Any, counter: Any, high: Any) -> Any:
    """`Key.integers` for one uint64 counter."""
    return ((_bits(state, counter) >> _U32) * high) >> _U32


@compiled
def _first_draws(state: Any, count: Any, per_positive: Any, n_items: Any, out: Any) -> None:
    """Draw from all items; each half of a hash is one draw."""
    hashes = (per_positive + 1) // 2
    high = np.uint64(n_items)
    if per_positive == 2 * hashes:
        for counter in range(count * hashes):
            bits = _bits(state, np.uint64(counter))
            out[2 * counter] = np.int64(((bits & _LOW) * high) >> _U32)
            out[2 * counter + 1] = np.int64(((bits >> _U32) * high) >> _U32)
        return
    for positive in range(count):
        for number in range(per_positive):
            bits = _bits(state, np.uint64(positive * hashes + number // 2))
            half = bits >> _U32 if number % 2 else bits & _LOW
            out[positive * per_positive + number] = np.int64((half * high) >> _U32)


@compiled
def _free_items(known: Any, free: Any) -> Any:
    """List the items that are not known; how many they are."""
    count = 0
    for item in range(known.size):
        if not known[item]:
            free[count] = item
            count += 1
    return count


@compiled
def draw_row(
    state: Any,
    count: Any,
    per_positive: Any,
    attempts: Any,
    known: Any,
    free: Any,
    again: Any,
    out: Any,
) -> None:
    """Draw one client's negatives, ``out`` (count * per_positive,) int64.

    Args:
        state: the client's key.
        count: of its positives.
        per_positive: negatives for each.
        attempts: draws before one of the free items is picked by number.
        known: ``(n_items,)`` bool, what is not drawn.
        free: ``(n_items,)`` int64, is written to.
        again: as ``out``, is written to.
        out: is written to; -1 where nothing is free.
    """
    _first_draws(state, count, per_positive, known.size, out)
    # Who must draw again is seldom and unforeseen: no branch on it. Unsigned places: none is taken
    # to count from the end.
    left = np.uint64(0)
    for number in range(count * per_positive):
        again[left] = number
        left += np.uint64(known[np.uint64(out[number])])
    n_free = -1  # not listed yet
    for place in range(left):
        number = again[place]
        for attempt in range(1, attempts + 1):
            counter = np.uint64(number) + np.uint64(attempt) * _STRIDE
            if attempt == attempts:
                if n_free < 0:
                    n_free = _free_items(known, free)
                out[number] = -1
                if n_free > 0:
                    out[number] = free[_integer(state, counter, np.uint64(n_free))]
                break
            item = _integer(state, counter, np.uint64(known.size))
            if not known[item]:
                out[number] = np.int64(item)
                break


@compiled
def _most(offsets: Any) -> Any:
    """Length of the longest row."""
    most = 0
    for row in range(offsets.size - 1):
        most = max(most, offsets[row + 1] - offsets[row])
    return most


@compiled
def negatives(
    states: Keys,
    values: Ints,
    offsets: Ints,
    mask: Any,
    n_items: int,
    per_positive: int,
    attempts: int,
) -> Ints:
    """Draw the negatives of C clients, see `sample_negatives`.

    Args:
        states: ``(C,)`` keys.
        values: positives of all clients, end to end.
        offsets: ``(C + 1,)`` first positive of each.
        mask: ``(C, n_items)`` bool, what is not drawn; ``(0, 0)`` for each client's positives.
        n_items: to draw from.
        per_positive: negatives for each positive.
        attempts: see `draw_row`.
    """
    drawn = np.empty(values.size * per_positive, np.int64)
    own = np.zeros(n_items, np.bool_)
    free = np.empty(n_items, np.int64)
    again = np.empty(_most(offsets) * per_positive + 1, np.int64)
    for client in range(states.size):
        first, last = offsets[client], offsets[client + 1]
        mine = values[first:last]
        out = drawn[first * per_positive : last * per_positive]
        if mask.size:
            known = mask[client]
            draw_row(states[client], mine.size, per_positive, attempts, known, free, again, out)
            continue
        for item in mine:
            own[item] = True
        draw_row(states[client], mine.size, per_positive, attempts, own, free, again, out)
        for item in mine:
            own[item] = False
    return drawn


@compiled
def place_row(
    state: Any, deal: Any, count: Any, attempts: Any, holder: Any, place: Any, waiting: Any
) -> None:
    """Place one client's elements, first come first served.

    Args:
        state: the client's key.
        deal: its key for those that no attempt has placed.
        count: of elements.
        attempts: draws before the places left over are dealt.
        holder: ``(n_places,)`` of zeros; becomes 1 + element where one stands.
        place: ``(count,)`` int64, is written to.
        waiting: ``(count,)`` int64, is written to.
    """
    high = np.uint64(holder.size)
    left = count
    for attempt in range(attempts):
        lost = 0
        for number in range(left):
            element = waiting[number] if attempt else number
            counter = np.uint64(element) + np.uint64(attempt) * _STRIDE
            drawn = np.int64(_integer(state, counter, high))
            if holder[drawn]:
                waiting[lost] = element
                lost += 1
            else:
                holder[drawn] = element + 1
                place[element] = drawn
        left = lost
        if not left:
            return
    _deal(deal, left, holder, place, waiting)


@compiled
def _deal(state: Any, left: Any, holder: Any, place: Any, waiting: Any) -> None:
    """Deal free places in random order: those of the smallest hashes."""
    n_free = 0
    for spot in range(holder.size):
        n_free += holder[spot] == 0
    spots, hashes = np.empty(n_free, np.int64), np.empty(n_free, np.uint64)
    number = 0
    for spot in range(holder.size):
        if holder[spot] == 0:
            spots[number] = spot
            hashes[number] = _bits(state, np.uint64(spot)) >> _U21
            number += 1
    order = np.argsort(hashes)
    for number in range(left):
        spot, element = spots[order[number]], waiting[number]
        holder[spot] = element + 1
        place[element] = spot


@compiled
def places(states: Keys, deals: Keys, offsets: Ints, starts: Ints, attempts: int) -> Ints:
    """Place the elements of C clients, see `distinct_places`.

    Args:
        states: ``(C,)`` keys.
        deals: ``(C,)`` keys for dealing.
        offsets: ``(C + 1,)`` first element of each.
        starts: ``(C + 1,)`` first place of each.
        attempts: see `place_row`.
    """
    found = np.empty(offsets[-1], np.int64)
    waiting = np.empty(offsets[-1], np.int64)
    holder = np.zeros(starts[-1], np.int32)
    for client in range(states.size):
        first, last = offsets[client], offsets[client + 1]
        start, end = starts[client], starts[client + 1]
        mine = found[first:last]
        own, wait = holder[start:end], waiting[first:last]
        place_row(states[client], deals[client], last - first, attempts, own, mine, wait)
        mine += start
    return found


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
    """Draw the samples of a pass over local batches, ``(S,)`` int32: ``2 * item + label``, by term.

    A term is a batch of a user; terms are ordered by the number of their batch.

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
        in_order: whether the order within a batch is needed; without it, positives come first.
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
            draw_row(keys[0][user], count, per_positive, attempts[0], known, free, waiting, drawn)
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
    n_batches = (total + batch - 1) // batch
    filled = np.zeros(n_batches, np.uint64)
    begin = np.empty(n_batches, np.uint64)
    for b in range(n_batches):
        begin[b] = firsts[starts[b] + rank]
    for number in range(mine.size):
        own = np.uint64(place[number] // batch) if n_batches > 1 else np.uint64(0)
        packed[begin[own] + filled[own]] = 2 * mine[number] + 1
        filled[own] += np.uint64(1)
    number = 0
    for b in range(n_batches):
        size = min(batch, total - b * batch)
        rest = packed[begin[b] + filled[b] : begin[b] + np.uint64(size)]
        few = drawn[number : number + rest.size]
        for spot in range(rest.size):
            rest[spot] = 2 * few[spot]
        number += rest.size
