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
        for entry in range(offsets[term], offsets[term + 1]):
            factor = left[entry]
            if factor != 0:
                row = index[entry]  # two indices: a view would be counted as a reference
                for column in range(total.shape[1]):
                    total[row, column] += factor * right[term, column]


@compiled
def count_rows(
    index: Any, left: Any, offsets: Any, order: Any, owner: Any, n_rows: Any, n_clients: Any
) -> Any:
    """Count the rows that each client changes, ``(C,)`` int64.

    Args:
        index: ``(m,)`` row of each entry.
        left: ``(m,)`` its factor; 0 is no change.
        offsets: ``(K + 1,)`` first entry of each term.
        order: ``(K,)`` terms, those of a client one after the other.
        owner: ``(K,)`` client of each term.
        n_rows: n.
        n_clients: C.
    """
    counts = np.zeros(n_clients, np.int64)
    seen = np.zeros(n_rows, np.int32)  # 1 + the last client that changed the row
    for term in order:
        client = owner[term]
        for entry in range(offsets[term], offsets[term + 1]):
            row, last = index[entry], seen[index[entry]]
            mark = client + 1 if left[entry] != 0 else last  # no branch: it would be hit or miss
            counts[client] += mark != last
            seen[row] = mark
    return counts


def kept_in() -> str | None:
    """Folder in which compiled kernels stay for the next process; None where there is none."""
    return cache_folder(add_products)
