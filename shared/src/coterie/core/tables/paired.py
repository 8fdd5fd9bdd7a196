"""Mean and spread over seeds; comparisons paired over seeds, adjusted for their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.core.tables.result import Values, known

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


# How one method compares with the others: tests paired over seeds, adjusted for their number.

Verdict = Literal["better", "worse", "within noise", "not tested"]
FEWEST = 3
"""Pairs from which on a difference is called better or worse; two leave one degree of freedom."""


@dataclass(frozen=True)
class Contrast:
    """One method minus another.

    Attributes:
        other: name of the other one.
        found: over pairs.
        p: adjusted for the number of others (Holm).
        higher: whether more is better.
    """

    other: str
    found: Comparison
    p: float = float("nan")
    higher: bool = True

    @property
    def verdict(self) -> Verdict:
        """Say whether the difference is more than noise."""
        if self.found.n < FEWEST:
            return "not tested"
        if not self.p <= ALPHA:
            return "within noise"
        return "better" if (self.found.difference > 0) == self.higher else "worse"

    def text(self, digits: int = 4, scale: float = 1.0) -> str:
        """Write the difference, and with several pairs its 95 % interval and p.

        Example:
            >>> Contrast("FedAvg", compare([0.3, 0.4], [0.2, 0.2]), p=0.4).text(digits=1)
            'FedAvg +0.1 (-0.5 to +0.8; p = 0.20, Holm = 0.40)'
        """
        f = self.found
        d, low, high = (f"{scale * v:+.{digits}f}" for v in (f.difference, f.low, f.high))
        detail = f" ({low} to {high}; p {p_text(f.p)}, Holm {p_text(self.p)})"
        return f"{self.other} {d}{detail if f.n > 1 else ''}"


@dataclass(frozen=True)
class Rank:
    """Where one method stands in a column.

    Attributes:
        place: 1 = the highest mean.
        of: number of methods that have a number there.
        best: the method with the highest mean.
        best_mean: its mean.
        own_mean: mean of the one that is ranked.
    """

    place: int
    of: int
    best: str
    best_mean: float
    own_mean: float


def contrasts(values: Mapping[str, Values], own: str, higher: bool = True) -> dict[str, Contrast]:
    """Compare one method with each of the others by paired t-tests; without a number, left out.

    Args:
        values: name of a method -> one value a seed, in the same order of seeds.
        own: the one.
        higher: whether more is better.
    """
    return _adjusted(
        Contrast(other, compare(values[own], found), higher=higher)
        for other, found in values.items()
        if other != own and known(found)
    )


def gains(values: Mapping[str, Values], base: str, higher: bool = True) -> dict[str, Contrast]:
    """Compare each of the other methods with one, the other way round than `contrasts`.

    Args:
        values: name of a method -> one value a seed, in the same order of seeds.
        base: the one.
        higher: whether more is better.

    Example:
        >>> found = gains({"FedAvg": [0.1, 0.2, 0.1], "ours": [0.3, 0.4, 0.4]}, "FedAvg")
        >>> round(found["ours"].found.difference, 3)
        0.233
    """
    return _adjusted(
        Contrast(other, compare(found, values[base]), higher=higher)
        for other, found in values.items()
        if other != base and known(found)
    )


def _adjusted(group: Iterable[Contrast]) -> dict[str, Contrast]:
    """Contrasts by the name of the other, with p adjusted for their number."""
    group = list(group)
    adjusted = holm([contrast.found.p for contrast in group])
    return {c.other: replace(c, p=p) for c, p in zip(group, adjusted, strict=True)}


def rank(values: Mapping[str, Values], own: str) -> Rank | None:
    """Rank by the mean over seeds; None where the one has no number."""
    means = {label: float(np.nanmean(found)) for label, found in values.items() if known(found)}
    if own not in means:
        return None
    best = max(means, key=lambda label: means[label])
    place = 1 + sum(mean > means[own] for mean in means.values())
    return Rank(place, len(means), best, means[best], means[own])
