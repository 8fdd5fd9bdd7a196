"""Tables of counts with given sums of rows and columns, as near as may be to given ratios."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_PASSES = 1000
_CLOSE = 1e-3  # of a sample, in every row
_TAIL = -30.0  # logarithm of a ratio below which it matters only when margins ask for it
_DEEPEST = -200.0  # where the tail ends, so that every cell keeps a ratio that can be raised


def counts_with_margins(log_ratios: Floats, rows: Counts, columns: Counts) -> Counts:
    """Share out ``columns`` among rows of given sizes, each near its own ratios.

    The ratios times the sizes are fitted to both margins (iterative proportional fitting, Deming
    and Stephan, 1940) and rounded so that the margins hold exactly. Ratios that contradict the
    margins are bent as far as these ask, alike for all rows: nobody is served first.

    Args:
        log_ratios: ``(R, K)``, finite logarithms; the ratios of a row sum to 1.
        rows: ``(R,)``, with the same total as ``columns``.
        columns: ``(K,)``.

    Returns:
        ``(R, K)`` with exactly these sums.

    Raises:
        ValueError: the totals differ, or a number is negative.

    Example:
        >>> ratios = np.array([[0.99, 0.01], [0.5, 0.5]])
        >>> counts_with_margins(np.log(ratios), np.array([4, 4]), np.array([6, 2])).tolist()
        [[4, 0], [2, 2]]
    """
    if rows.sum() != columns.sum() or min(rows.min(), columns.min(), 0) < 0:
        raise ValueError("rows and columns must be 0 or more, with equal totals")
    table = _fit(np.exp(_shorten_tail(log_ratios)), rows, columns)
    return _mend(_round_columns(table), table, rows)


def _shorten_tail(logs: Floats) -> Floats:
    """Keep the order of ratios too small for a float: what is lacking comes from the next best."""
    factor = min(1.0, (_DEEPEST - _TAIL) / min(float(logs.min()) - _TAIL, -1.0))
    return np.where(logs < _TAIL, _TAIL + (logs - _TAIL) * factor, logs)


def _fit(ratios: Floats, rows: Counts, columns: Counts) -> Floats:
    table: Floats = ratios * rows[:, None]
    for _ in range(_PASSES):
        table *= _quotient(columns, table.sum(0))
        sums = table.sum(1)
        if np.abs(sums - rows).max() < _CLOSE:
            break
        table *= _quotient(rows, sums)[:, None]
    return table * _quotient(columns, table.sum(0))


def _quotient(wanted: Counts, had: Floats) -> Floats:
    return np.divide(wanted, had, out=np.zeros_like(had), where=had > 0)


def _round_columns(table: Floats) -> Counts:
    """Keep the sums of the columns; each starts at an offset of its own, so that errors differ."""
    offset = (np.arange(table.shape[1]) + 0.5) / table.shape[1]
    steps = np.floor(table.cumsum(0) + offset).astype(np.int64)
    return np.diff(steps, axis=0, prepend=0)


def _mend(counts: Counts, table: Floats, rows: Counts) -> Counts:
    """Move single samples within a column, from rows that have too many to rows that lack some."""
    excess = counts.sum(1) - rows
    for _ in range(int(np.abs(excess).sum()) // 2):
        giver, taker = int(excess.argmax()), int(excess.argmin())
        over = (counts[giver] - table[giver]) - (counts[taker] - table[taker])
        column = int(np.where(counts[giver] > 0, over, -np.inf).argmax())
        counts[[giver, taker], column] += [-1, 1]
        excess[[giver, taker]] += [-1, 1]
    return counts
