"""The kernel of local training on touched items (`coterie.continual.local_training`).

Samples, terms and their order are those of `coterie.continual.batches.Batches`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coterie.core.kernels.compiled import compiled

_ONE, _TWO, _HALF = np.float32(1), np.float32(2), np.float32(0.5)
# exp(z) = 2^k exp(r): k to the nearest, r what is left, ln 2 in two parts so that r is exact.
_LOG2_E, _LN2_HIGH, _LN2_LOW = (np.float32(c) for c in (1.44269504, 0.693359375, -2.12194440e-4))
_LEAST = np.float32(-87.3)  # the smallest normal number is exp of that
_FAR = np.float32(88.7)  # torch's sigmoid is 0 below minus that
_E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))
# log(1 + e) = 2 artanh(t), t = e / (2 + e) in [0, 1/3].
_T3, _T5, _T7, _T9, _T11, _T13 = (np.float32(2 / n) for n in (3, 5, 7, 9, 11, 13))

# Rows are read by two indices: a view of one is counted as a reference, which takes longer than the
# row.


@compiled
def train_users(
    samples: Any, order: Any, table: Any, params: Any, rates: Any, head_first: Any, out: Any
) -> None:
    """Train C users, one after the other, batch by batch.

    The score of item i is ``<v, table[i]> + c``, and the user's bias c may have ``<a, b>`` added.
    A user with several batches changes rows of one copy of the table, which then get back what
    they were.

    Args:
        samples: first term of each batch number; first sample of each term, ``(K + 1,)``; and
            ``2 * item + label`` of each, ``(S,)`` int32.
        order: ``(C,)`` the user of the first terms; users without samples come last.
        table: ``(n, d)`` shared by all.
        params: v ``(C, d)``, c ``(C,)``, a and b ``(C, d)``, or ``(0, d)`` for none; trained in
            place.
        rates: learning rates of the items, of v, c, a and b.
        head_first: whether items step after a fresh forward with the new v, c, a and b.
        out: is written to: ``(S,)`` factor of each sample, ``(K, d)`` vector and ``(K,)`` mean loss
            of each term.
    """
    starts, offsets, packed = samples
    left, right, losses = out
    own, rate = table.copy(), table.dtype.type(-rates[0])
    size = 0
    for term in range(right.shape[0]):
        size = max(size, offsets[term + 1] - offsets[term])
    batch = (np.empty(size, table.dtype), np.empty(size, table.dtype), np.empty(size, np.int32))
    gradient = np.empty(table.shape[1], table.dtype)
    for rank in range(order.size):
        user, before, mine, factors = order[rank], -1, packed[:0], left[:0]
        for number in range(starts.size - 1):
            term = starts[number] + rank
            if term >= starts[number + 1]:
                continue
            if before >= 0:
                _move(before, mine, factors, right, own)
            before, first, last = term, offsets[term], offsets[term + 1]
            mine, factors = packed[first:last], left[first:last]
            losses[term] = _forward(mine, own, params, user, batch)
            slope = _gradient(mine, own, batch[0], gradient)
            if not head_first:
                _keep(term, params[0], user, right)
            _descend(user, params, rates, gradient, slope)
            if head_first:
                _forward(mine, own, params, user, batch)
                _keep(term, params[0], user, right)
            for sample in range(mine.size):
                factors[sample] = rate * batch[0][sample]
        for number in range(starts.size - 1):
            term = starts[number] + rank
            if term < starts[number + 1] and term != before:
                _restore(packed[offsets[term] : offsets[term + 1]], table, own)


@compiled
def _items(mine: Any, first: Any) -> Any:
    """Items of four samples: rows that are read together share the loads of what they meet."""
    i, j = np.uint32(mine[first] >> 1), np.uint32(mine[first + 1] >> 1)
    return i, j, np.uint32(mine[first + 2] >> 1), np.uint32(mine[first + 3] >> 1)


@compiled
def _forward(mine: Any, table: Any, params: Any, user: Any, batch: Any) -> Any:
    """Find dL/ds of each sample of a batch, and return its mean loss L."""
    vectors, shifts, ones, others = params
    residuals, losses, bits = batch
    shift = shifts[user]
    if ones.size:
        for column in range(vectors.shape[1]):
            shift += ones[user, column] * others[user, column]
    four = mine.size - mine.size % 4
    for sample in range(0, four, 4):
        i, j, k, n = _items(mine, sample)
        one = two = three = last = shift
        for column in range(vectors.shape[1]):
            weight = vectors[user, column]
            one += table[i, column] * weight
            two += table[j, column] * weight
            three += table[k, column] * weight
            last += table[n, column] * weight
        residuals[sample], residuals[sample + 1] = one, two
        residuals[sample + 2], residuals[sample + 3] = three, last
    for sample in range(four, mine.size):
        item, score = np.uint32(mine[sample] >> 1), shift
        for column in range(vectors.shape[1]):
            score += table[item, column] * vectors[user, column]
        residuals[sample] = score
    logistic(mine, residuals, losses, bits)
    total, count = table.dtype.type(0), table.dtype.type(mine.size)
    for sample in range(mine.size):
        total += losses[sample]
        residuals[sample] /= count
    return total / count


@compiled
def _gradient(mine: Any, table: Any, residuals: Any, gradient: Any) -> Any:
    """Find dL/dv, ``(d,)``, and return dL/dc."""
    slope = table.dtype.type(0)
    for column in range(gradient.size):
        gradient[column] = 0
    for sample in range(mine.size):
        slope += residuals[sample]
    four = mine.size - mine.size % 4
    for sample in range(0, four, 4):
        i, j, k, n = _items(mine, sample)
        one, two = residuals[sample], residuals[sample + 1]
        three, last = residuals[sample + 2], residuals[sample + 3]
        for column in range(gradient.size):
            gradient[column] += (one * table[i, column] + two * table[j, column]) + (
                three * table[k, column] + last * table[n, column]
            )
    for sample in range(four, mine.size):
        item, one = np.uint32(mine[sample] >> 1), residuals[sample]
        for column in range(gradient.size):
            gradient[column] += one * table[item, column]
    return slope


@compiled
def _descend(user: Any, params: Any, rates: Any, gradient: Any, slope: Any) -> None:
    """Take one step on the private parameters."""
    vectors, shifts, ones, others = params
    kind = vectors.dtype.type
    for column in range(gradient.size):
        vectors[user, column] -= kind(rates[1]) * gradient[column]
    shifts[user] -= kind(rates[2]) * slope
    if ones.size:
        one, other = kind(rates[3]) * slope, kind(rates[4]) * slope
        for column in range(gradient.size):
            was = ones[user, column]
            ones[user, column] -= one * others[user, column]
            others[user, column] -= other * was


@compiled
def _keep(term: Any, vectors: Any, user: Any, right: Any) -> None:
    """Note the vector by which a term changes items."""
    for column in range(right.shape[1]):
        right[term, column] = vectors[user, column]


@compiled
def _move(term: Any, mine: Any, factors: Any, right: Any, table: Any) -> None:
    """Change the rows of a term's items."""
    for sample in range(mine.size):
        item, factor = np.uint32(mine[sample] >> 1), factors[sample]
        for column in range(table.shape[1]):
            table[item, column] += factor * right[term, column]


@compiled
def _restore(mine: Any, table: Any, own: Any) -> None:
    """Put back the rows of a term's items."""
    for sample in range(mine.size):
        item = np.uint32(mine[sample] >> 1)
        for column in range(table.shape[1]):
            own[item, column] = table[item, column]


@compiled
def logistic(packed: Any, scores: Any, losses: Any, bits: Any) -> None:
    """Turn scores into ``sigmoid(score) - label``, and find the binary cross entropies.

    Args:
        packed: ``(s,)``, labels in the lowest bit.
        scores: ``(s,)`` or longer, is written to.
        losses: the same.
        bits: the same, int32.
    """
    if scores.itemsize == 4:
        _single(packed, scores, losses, bits)
    else:
        _double(packed, scores, losses)


@compiled
def _single(packed: Any, scores: Any, losses: Any, bits: Any) -> None:
    """In float32; the loops are apart so that each is one of simple steps."""
    powers = bits.view(np.float32)
    for n in range(packed.size):
        far = -abs(scores[n])
        z = _LEAST if far < _LEAST else far  # NaN stays
        k = np.floor(z * _LOG2_E + _HALF)
        r = (z - k * _LN2_HIGH) - k * _LN2_LOW
        p = _E4 + r * (_E5 + r * (_E6 + r * _E7))
        losses[n] = _ONE + r * (_ONE + r * (_E2 + r * (_E3 + r * p)))
        bits[n] = (np.int32(k) + np.int32(127)) << np.int32(23)  # 2^k
    for n in range(packed.size):
        score, label = scores[n], np.float32(packed[n] & 1)
        e = losses[n] * powers[n]
        if abs(score) > _FAR:
            e = np.float32(0)
        t = e / (_TWO + e)
        t2 = t * t
        log = t * (
            _TWO + t2 * (_T3 + t2 * (_T5 + t2 * (_T7 + t2 * (_T9 + t2 * (_T11 + t2 * _T13)))))
        )
        above = _ONE / (_ONE + e)
        missed = score - _TWO * score * label
        losses[n] = log + (missed if missed > 0 else missed * np.float32(0))
        scores[n] = (above if score >= 0 else e * above) - label


@compiled
def _double(packed: Any, scores: Any, losses: Any) -> None:
    for n in range(packed.size):
        score, label = scores[n], float(packed[n] & 1)
        e = math.exp(-abs(score))
        missed = score - 2.0 * score * label
        losses[n] = math.log1p(e) + (missed if missed > 0 else missed * 0.0)
        scores[n] = (1.0 if score >= 0 else e) / (1.0 + e) - label
