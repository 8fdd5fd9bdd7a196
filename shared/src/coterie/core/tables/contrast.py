"""How one method compares with the others: tests paired over seeds, adjusted for their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.core.tables.paired import ALPHA, Comparison, compare, holm, p_text
from coterie.core.tables.result import Values, known

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
