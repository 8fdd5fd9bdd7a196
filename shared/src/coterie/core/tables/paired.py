"""Mean and spread over seeds, and paired comparisons of two methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALPHA = 0.05


@dataclass(frozen=True)
class Spread:
    """Of a number over repetitions.

    Attributes:
        mean: over the repetitions.
        sd: sample standard deviation (n - 1); NaN for a single repetition.
        n: number of repetitions.
    """

    mean: float
    sd: float
    n: int

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 4) -> str:
        """Write the mean, and the standard deviation of several."""
        mean = f"{self.mean:,.{digits}f}"
        return mean if self.n < 2 else f"{mean} ± {self.sd:,.{digits}f}"


@dataclass(frozen=True)
class Comparison:
    """Of a method with another one on the same seeds (or users).

    Attributes:
        difference: mean of first - second.
        low: lower end of the 95 % confidence interval of the difference.
        high: upper end.
        p: two-sided, of the paired t-test; NaN with fewer than two pairs.
        n: number of pairs.
    """

    difference: float
    low: float
    high: float
    p: float
    n: int


def spread(values: ArrayLike) -> Spread:
    """Summarise repetitions, ``(n,)``.

    Example:
        >>> str(spread([0.10, 0.12]))
        '0.1100 ± 0.0141'
    """
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean()) if array.size else float("nan")
    sd = float(array.std(ddof=1)) if array.size > 1 else float("nan")
    return Spread(mean, sd, array.size)


def compare(first: ArrayLike, second: ArrayLike) -> Comparison:
    """Compare two methods by a paired t-test.

    Pairs of which one value is NaN (a user without a test item) are left out. Differences that are
    all equal leave nothing to test: p is 1 where they are 0, else 0.

    Args:
        first: ``(n,)`` values of one method.
        second: ``(n,)`` values of the other, in the same order.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> found = compare([0.11, 0.12, 0.14], [0.10, 0.10, 0.11])
        >>> round(found.difference, 3), round(found.p, 3)
        (0.02, 0.074)
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (first, second))
    if a.shape != b.shape:
        raise ValueError(f"paired values of different shapes: {a.shape} and {b.shape}")
    difference: NDArray[np.float64] = (a - b)[~np.isnan(a - b)]
    n = difference.size
    mean = float(difference.mean()) if n else float("nan")
    if n < 2:
        return Comparison(mean, float("nan"), float("nan"), float("nan"), n)
    if np.ptp(difference) == 0.0:
        return Comparison(mean, mean, mean, 1.0 if mean == 0.0 else 0.0, n)
    from scipy import stats  # a second of imports that a mean over seeds does not need

    found = stats.ttest_1samp(difference, 0.0)
    interval = found.confidence_interval(1 - ALPHA)
    return Comparison(mean, float(interval.low), float(interval.high), float(found.pvalue), n)


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p-values of several comparisons (Holm, Scand. J. Statist. 6, 1979).

    NaN (nothing to test) stays NaN and does not count.

    Example:
        >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    order = values.argsort(kind="stable")[: np.count_nonzero(~np.isnan(values))]  # NaN is last
    scaled = np.minimum(1.0, np.arange(order.size, 0, -1) * values[order])
    adjusted = np.full(values.size, np.nan)
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted.tolist()


def p_text(p: float) -> str:
    """Write a p-value as what stands behind "p".

    Example:
        >>> p_text(0.00001), p_text(0.0123), p_text(0.456), p_text(float("nan"))
        ('< 0.0001', '= 0.0123', '= 0.46', 'unknown')
    """
    if p != p:
        return "unknown"
    return "< 0.0001" if p < 1e-4 else f"= {p:.4f}" if p < 0.1 else f"= {p:.2f}"
