"""Kernels over sums of outer products whose left factors are sparse (`SparseFactoredRows`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.core.kernels.compiled import cache_folder, compiled


@compiled
def add_products(index: Any, left: Any, offsets: Any, right: Any, total: Any) -> None:
    """Add every term's outer product to ``total``, ``(n, d)``.

    Args:
        index: ``(m,)`` row of each entry.
        left: ``(m,)`` its factor.
        offsets: ``(K + 1,)`` first entry of each term.
        right: ``(K, d)`` the terms' other factors.
        total: is written to.
    """
    for term in range(right.shape[0]):
        first, last = offsets[term], offsets[term + 1]
        rows, factors = index[first:last], left[first:last]
        for entry in range(rows.size):
            factor = factors[entry]
            if factor != 0:
                # Two indices: a view would be counted as a reference. Unsigned: none is negative.
                row = np.uint32(rows[entry])
                for column in range(total.shape[1]):
                    total[row, column] += factor * right[term, column]


@compiled
def count_rows(index: Any, left: Any, offsets: Any, owner: Any, n_rows: Any, n_clients: Any) -> Any:
    """Count the rows that each client changes, ``(C,)`` int64.

    Args:
        index: ``(m,)`` row of each entry.
        left: ``(m,)`` its factor; 0 is no change.
        offsets: ``(K + 1,)`` first entry of each term.
        owner: ``(K,)`` client of each term.
        n_rows: n.
        n_clients: C.
    """
    counts = np.zeros(n_clients, np.int64)
    seen = np.zeros(n_rows, np.int32)  # 1 + the last client that changed the row
    last_of, before = np.full(n_clients, -1), np.empty(owner.size, np.int64)
    for term in range(owner.size):
        before[term] = last_of[owner[term]]
        last_of[owner[term]] = term
    for client in range(n_clients):
        mine, count, term = np.int32(client + 1), 0, last_of[client]
        while term >= 0:
            first, last = offsets[term], offsets[term + 1]
            rows, factors = index[first:last], left[first:last]
            for entry in range(rows.size):
                row = np.uint32(rows[entry])
                marked = seen[row]
                mark = mine if factors[entry] != 0 else marked  # no branch: it would be hit or miss
                count += mark != marked
                seen[row] = mark
            term = before[term]
        counts[client] = count
    return counts


@compiled
def bound_norms(left: Any, offsets: Any, owner: Any, right: Any, n_clients: Any) -> Any:
    """Bound the Frobenius norm of each client's sum, ``(C,)``: the sum of its terms' norms.

    Args:
        left: ``(m,)`` factor of each entry.
        offsets: ``(K + 1,)`` first entry of each term.
        owner: ``(K,)`` client of each term.
        right: ``(K, d)`` the terms' other factors.
        n_clients: C.
    """
    bounds = np.zeros(n_clients, right.dtype)
    for term in range(owner.size):
        entries, squares = right.dtype.type(0), right.dtype.type(0)
        for factor in left[offsets[term] : offsets[term + 1]]:
            entries += abs(factor)
        for column in range(right.shape[1]):
            squares += right[term, column] * right[term, column]
        bounds[owner[term]] += entries * np.sqrt(squares)
    return bounds


def kept_in() -> str | None:
    """Folder in which compiled kernels stay for the next process; None where there is none."""
    return cache_folder(add_products)
