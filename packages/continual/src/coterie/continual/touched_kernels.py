"""The kernel of local training on touched items (`coterie.continual.touched_training`).

Samples, terms and their order are those of `coterie.continual.batches.Batches`. What earlier
batches changed for a user is, as there, a sum of outer products: the samples of a term have a
factor each, the term has a vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.continual.logistic_kernels import logistic
from coterie.core.kernels.compiled import compiled

# Rows are read by two indices: a view of one is counted as a reference, which takes longer than the
# row.


@compiled
def train_users(
    samples: Any, order: Any, table: Any, params: Any, rates: Any, head_first: Any, out: Any
) -> None:
    """Train C users, one after the other, batch by batch.

    The score of item i is ``<v, table[i]> + c``, and the user's bias c may have ``<a, b>`` added.

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
    starts, offsets, _ = samples
    left, right, losses = out
    n_items, kind = table.shape[0], table.dtype.type
    size = 0
    for term in range(right.shape[0]):
        size = max(size, offsets[term + 1] - offsets[term])
    batch = (np.empty(size, table.dtype), np.empty(size, table.dtype), np.empty(size, np.int32))
    by_item, gradient = np.zeros(n_items, table.dtype), np.empty(table.shape[1], table.dtype)
    for rank in range(order.size):
        user = order[rank]
        for number in range(starts.size - 1):
            term = starts[number] + rank
            if term >= starts[number + 1]:
                continue
            where = (number, rank, user)
            _score(samples, where, table, params, (left, right), by_item, batch)
            losses[term] = _residuals(samples, term, batch)
            slope = _gradient(samples, where, table, (left, right), by_item, batch, gradient)
            if not head_first:
                _keep(samples, term, user, params, kind(rates[0]), batch, out)
            _descend(user, params, rates, gradient, slope)
            if head_first:
                _score(samples, where, table, params, (left, right), by_item, batch)
                _residuals(samples, term, batch)
                _keep(samples, term, user, params, kind(rates[0]), batch, out)


@compiled
def _inner(rows: Any, row: Any, others: Any, other: Any) -> Any:
    """Inner product of a row of one matrix with a row of another."""
    total = rows.dtype.type(0)
    for column in range(rows.shape[1]):
        total += rows[row, column] * others[other, column]
    return total


@compiled
def _score(
    samples: Any, where: Any, table: Any, params: Any, changes: Any, moved: Any, batch: Any
) -> None:
    """Score the samples of one batch under the user's own local table.

    ``moved``, ``(n,)`` of zeros, is left as it was.
    """
    starts, offsets, packed = samples
    vectors, shifts, ones, others = params
    left, right = changes
    number, rank, user = where
    first, last = offsets[starts[number] + rank], offsets[starts[number] + rank + 1]
    scores, shift = batch[0], shifts[user]
    if ones.size:
        shift += _inner(ones, user, others, user)
    for sample in range(first, last):
        item = np.uint32(packed[sample] >> 1)
        scores[sample - first] = _inner(table, item, vectors, user) + shift
    if not number:
        return
    for earlier in range(number):
        term = starts[earlier] + rank
        if term < starts[earlier + 1]:
            inner = _inner(right, term, vectors, user)
            for sample in range(offsets[term], offsets[term + 1]):
                moved[packed[sample] >> 1] += left[sample] * inner
    for sample in range(first, last):
        scores[sample - first] += moved[packed[sample] >> 1]
    for earlier in range(number):
        term = starts[earlier] + rank
        if term < starts[earlier + 1]:
            for sample in range(offsets[term], offsets[term + 1]):
                moved[packed[sample] >> 1] = 0


@compiled
def _residuals(samples: Any, term: Any, batch: Any) -> Any:
    """Turn the scores of one batch into dL/ds of its mean loss, which is returned."""
    _, offsets, packed = samples
    residuals, losses, bits = batch
    first, size = offsets[term], offsets[term + 1] - offsets[term]
    logistic(packed[first : first + size], residuals, losses, bits)
    total, count = residuals.dtype.type(0), residuals.dtype.type(size)
    for sample in range(size):
        total += losses[sample]
        residuals[sample] /= count
    return total / count


@compiled
def _gradient(
    samples: Any, where: Any, table: Any, changes: Any, by_item: Any, batch: Any, gradient: Any
) -> Any:
    """Find dL/dv of one batch, ``(d,)``, and return dL/dc; ``by_item`` as in `_score`."""
    starts, offsets, packed = samples
    left, right = changes
    number, rank, _ = where
    first, last = offsets[starts[number] + rank], offsets[starts[number] + rank + 1]
    residuals, slope = batch[0], table.dtype.type(0)
    for column in range(gradient.size):
        gradient[column] = 0
    for sample in range(first, last):
        item, residual = np.uint32(packed[sample] >> 1), residuals[sample - first]
        slope += residual
        for column in range(gradient.size):
            gradient[column] += residual * table[item, column]
    if not number:
        return slope
    for sample in range(first, last):
        by_item[packed[sample] >> 1] += residuals[sample - first]
    for earlier in range(number):
        term = starts[earlier] + rank
        if term < starts[earlier + 1]:
            weight = table.dtype.type(0)
            for sample in range(offsets[term], offsets[term + 1]):
                weight += left[sample] * by_item[packed[sample] >> 1]
            for column in range(gradient.size):
                gradient[column] += weight * right[term, column]
    for sample in range(first, last):
        by_item[packed[sample] >> 1] = 0
    return slope


@compiled
def _keep(samples: Any, term: Any, user: Any, params: Any, rate: Any, batch: Any, out: Any) -> None:
    """Note what one batch changes of items."""
    first, last = samples[1][term], samples[1][term + 1]
    left, right, _ = out
    for sample in range(first, last):
        left[sample] = -rate * batch[0][sample - first]
    for column in range(right.shape[1]):
        right[term, column] = params[0][user, column]


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
            before = ones[user, column]
            ones[user, column] -= one * others[user, column]
            others[user, column] -= other * before
