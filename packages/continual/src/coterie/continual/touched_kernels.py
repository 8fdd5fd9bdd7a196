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

# Of `coterie.core.tensors.keys`.
_GOLDEN, _MIX1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_U11, _U27, _U30, _U31 = (np.uint64(bits) for bits in (11, 27, 30, 31))

# Rows are read by two indices: a view of one is counted as a reference, which takes longer than the
# row.


@compiled
def train_users(
    samples: Any,
    order: Any,
    table: Any,
    params: Any,
    rates: Any,
    head_first: Any,
    lists: Any,
    out: Any,
) -> None:
    """Train C users, one after the other, batch by batch.

    Args:
        samples: first term of each batch number; first sample of each term, ``(K + 1,)``, and place
            behind its last one, ``(K,)``; and ``2 * item + label`` of each, ``(S,)`` int32. What is
            practised beside a batch is written behind its samples.
        order: ``(C,)`` the user of the first terms; users without samples come last.
        table: ``(n, d)`` shared by all.
        params: v ``(C, d)``, c ``(C,)``, a and b ``(C, d)``, or ``(0, d)`` for none; trained in
            place. The score of item i is ``<v, table[i]> + c + <a, b>``.
        rates: learning rates of the items, of v, c, a and b.
        head_first: whether items step after a fresh forward with the new v, c, a and b.
        lists: what is practised, see `choose`.
        out: is written to: ``(S,)`` zeros for factors of samples; ``(K, d)`` vector of each term;
            ``(2, C)`` zeros for means over batches, of their loss and practised items.
    """
    (starts, offsets, ends, packed), (left, right, means) = samples, out
    # A user with several batches changes rows of one copy, which then get back what they were.
    own, rate = table.copy(), table.dtype.type(-rates[0])
    batch, gradient, memory = _room(offsets, lists, table)
    for rank in range(order.size):
        user, before, done, mine, factors = order[rank], -1, 0, packed[:0], left[:0]
        for number in range(starts.size - 1):
            term = starts[number] + rank
            if term >= starts[number + 1]:
                continue
            if before >= 0:
                _move(before, mine, factors, right, own)
            first, last, count = offsets[term], ends[term], 0
            if lists[0][user]:
                room = packed[last : offsets[term + 1]]
                count = choose(user, done, own, params[0], lists, memory, room)
            mine, factors = packed[first : last + count], left[first : last + count]
            means[0, user] += _forward(mine, count, own, params, user, batch)
            means[1, user] += count
            slope = _gradient(mine, own, batch[0], gradient)
            if not head_first:
                _keep(term, params[0], user, right)
            _descend(user, params, rates, gradient, slope)
            if head_first:
                _forward(mine, count, own, params, user, batch)
                _keep(term, params[0], user, right)
            for sample in range(mine.size):
                factors[sample] = rate * batch[0][sample]
            before, done = term, done + 1
        means[:, user] /= max(done, 1)
        for number in range(starts.size - 1):
            term = starts[number] + rank
            if term < starts[number + 1] and term != before:
                _restore(packed[offsets[term] : offsets[term + 1]], table, own)


@compiled
def _room(offsets: Any, lists: Any, table: Any) -> Any:
    """Room for dL/ds and two more numbers of each sample, for dL/dv, and for `choose`."""
    size, kind, n_listed = 0, table.dtype, lists[1].shape[1]
    for term in range(offsets.size - 1):
        size = max(size, offsets[term + 1] - offsets[term])
    soft, shares = np.empty(n_listed, kind), np.empty(n_listed, kind)
    batch = (np.empty(size, kind), np.empty(size, kind), np.empty(size, np.int32), soft, shares)
    scores = np.empty(table.shape[0] if lists[5][1] else 0, kind)
    memory = (soft, shares, np.empty(n_listed, np.int64), scores)
    return batch, np.empty(table.shape[1], kind), memory


@compiled
def _items(mine: Any, first: Any) -> Any:
    """Items of four samples: rows that are read together share the loads of what they meet."""
    i, j = np.uint32(mine[first] >> 1), np.uint32(mine[first + 1] >> 1)
    return i, j, np.uint32(mine[first + 2] >> 1), np.uint32(mine[first + 3] >> 1)


@compiled
def _forward(mine: Any, practised: Any, table: Any, params: Any, user: Any, batch: Any) -> Any:
    """Find dL/ds of each sample of a batch, and return its mean loss.

    The last ones are practised: they have soft labels and weights, and no part in the mean.
    """
    vectors, shifts, ones, others = params
    residuals, losses, bits, soft, shares = batch
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
    known = mine.size - practised
    total, count = table.dtype.type(0), table.dtype.type(known)
    for sample in range(known):
        total += losses[sample]
        residuals[sample] /= count
    for place in range(practised):  # their lowest bits are 0, so this is a probability
        probability = residuals[known + place]
        residuals[known + place] = shares[place] * (probability - soft[place])
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


# What is practised again beside a batch: `coterie.continual.rehearsal`.


@compiled
def choose(
    user: Any, done: Any, table: Any, vectors: Any, lists: Any, memory: Any, chosen: Any
) -> Any:
    """Choose what a user practises beside a batch, and return how many items that are.

    Args:
        user: number of the user.
        done: batches that it has done.
        table: ``(n, d)`` the user's own.
        vectors: ``(C, d)`` v of all users.
        lists: who has one, ``(C,)`` bool; items ``(C, N)`` int32, soft labels and weights
            ``(C, N)``; keys of draws ``(C,)`` uint64; and whether the chosen ones share their
            weight, whether they are drawn, and ε.
        memory: see `_room`; soft labels and weights of the chosen items are written to it.
        chosen: ``(N,)`` int32, is written to: ``2 * item``, and zeros.
    """
    _, items, labels, weights, keys, (shared, drawn, epsilon) = lists
    soft, shares, draws, scores = memory
    size: Any = chosen.size
    if drawn:
        _score(table, vectors, user, scores)
        decay = math.exp(-epsilon * _shift(items, user, scores))
        size = np.int64(np.floor(decay * chosen.size))
        _draw(keys[user], done, draws)
    count = 0
    for place in range(chosen.size):
        weight = weights[user, place]
        if weight != 0 and (not drawn or _before(draws, place) < size):
            chosen[count] = 2 * items[user, place]
            soft[count] = labels[user, place]
            shares[count] = weight / table.dtype.type(size) if shared else weight
            count += 1
    chosen[count:] = 0
    return count


@compiled
def _score(table: Any, vectors: Any, user: Any, scores: Any) -> None:
    """Score all items, up to the number c, which no rank depends on."""
    four = scores.size - scores.size % 4
    for item in range(0, four, 4):
        one = two = three = last = table.dtype.type(0)
        for column in range(vectors.shape[1]):
            weight = vectors[user, column]
            one += table[item, column] * weight
            two += table[item + 1, column] * weight
            three += table[item + 2, column] * weight
            last += table[item + 3, column] * weight
        scores[item], scores[item + 1] = one, two
        scores[item + 2], scores[item + 3] = three, last
    for item in range(four, scores.size):
        score = table.dtype.type(0)
        for column in range(vectors.shape[1]):
            score += table[item, column] * vectors[user, column]
        scores[item] = score


@compiled
def _shift(items: Any, user: Any, scores: Any) -> Any:
    """Sum over the listed items how far their ranks are from their places in the list (Eq. 2)."""
    shift: Any = 0
    for place in range(items.shape[1]):
        score, above = scores[items[user, place]], np.uint32(0)
        for item in range(scores.size):
            above = np.uint32(above + np.uint32(scores[item] > score))  # as wide as a score
        shift += abs(np.int64(above) - place)
    return shift


@compiled
def _draw(key: Any, done: Any, draws: Any) -> None:
    """Draw a number for each place of the list."""
    own = _bits(key ^ _bits(np.uint64(done), np.uint64(0)), np.uint64(0))  # as `Key.fold`
    for place in range(draws.size):
        draws[place] = np.int64(_bits(own, np.uint64(place)) >> _U11)


@compiled
def _before(draws: Any, place: Any) -> Any:
    """How many draws are smaller than that of a place."""
    count = 0
    for other in range(draws.size):
        count += draws[other] < draws[place]
    return count


@compiled
def _bits(state: Any, counter: Any) -> Any:
    """`Key.bits` of one uint64 counter."""
    x = state + counter * _GOLDEN + _GOLDEN
    x = (x ^ (x >> _U30)) * _MIX1
    x = (x ^ (x >> _U27)) * _MIX2
    return x ^ (x >> _U31)


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
