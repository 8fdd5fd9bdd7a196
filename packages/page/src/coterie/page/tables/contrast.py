"""How PAGE compares with the other methods: ranks, and tests paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.core.tables.paired import ALPHA, Comparison, compare, holm, p_text
from coterie.page.tables.layout import known
from coterie.page.tables.runs import GLOBAL, LOCAL
from coterie.page.tables.study import OWN, Results, at_best, name_of

COLUMNS = {"global": f"test/{GLOBAL}", "local": f"test/{LOCAL}"}
"""The columns of the paper's tables, and what is measured for them in the best round."""


@dataclass(frozen=True)
class Contrast:
    """One variant minus another.

    Attributes:
        other: the other one's name.
        found: over the seeds.
        p: adjusted for the number of others (Holm).
    """

    other: str
    found: Comparison
    p: float = float("nan")

    @property
    def verdict(self) -> str:
        """Say in a word whether the difference is more than noise."""
        if self.found.n < 2:
            return "not tested"
        if not self.p <= ALPHA:
            return "within noise"
        return "better" if self.found.difference > 0 else "worse"

    def __str__(self) -> str:
        f = self.found
        text = f"{self.other} {100 * f.difference:+.2f}"
        if f.n > 1:
            interval = f"{100 * f.low:+.2f} to {100 * f.high:+.2f}"
            text += f" ({interval}; p {p_text(f.p)}, Holm {p_text(self.p)})"
        return f"{text}, {self.verdict}"


@dataclass(frozen=True)
class Rank:
    """Where one variant stands in a column.

    Attributes:
        place: 1 = the highest mean.
        of: number of variants that have a number there.
        best: the variant with the highest mean.
        best_mean: its mean.
        own_mean: mean of the one that is ranked.
    """

    place: int
    of: int
    best: str
    best_mean: float
    own_mean: float


def contrasts(values: Mapping[str, Sequence[float]], own: str) -> list[Contrast]:
    """Compare one variant with the others, in the order of the seeds; without a number, left out.

    Args:
        values: label -> one value a seed.
        own: label of the one.
    """
    group = [
        Contrast(other, compare(values[own], found))
        for other, found in values.items()
        if other != own and known(found)
    ]
    adjusted = holm([contrast.found.p for contrast in group])
    return [replace(c, p=p) for c, p in zip(group, adjusted, strict=True)]


def rank(values: Mapping[str, Sequence[float]], own: str) -> Rank | None:
    """Rank by the mean over seeds; None where the one has no number."""
    means = {label: float(np.nanmean(found)) for label, found in values.items() if known(found)}
    if own not in means:
        return None
    best = max(means, key=lambda label: means[label])
    place = 1 + sum(mean > means[own] for mean in means.values())
    return Rank(place, len(means), best, means[best], means[own])


def column_values(results: Results, metric: str) -> dict[str, Sequence[float]]:
    """A number of the best round of every method, by the method's printed name."""
    return {name_of(method): at_best(part, metric) for method, part in results.items()}


def comparison_notes(results: Results, own: str = OWN) -> list[str]:
    """Write out the paired tests of PAGE against every other method, a line for each column."""
    label, notes = name_of(own), []
    for column, metric in COLUMNS.items():
        found = contrasts(column_values(results, metric), label)
        if found:
            notes.append(difference_note(f"{column} accuracy", label, found))
    return notes


def difference_note(what: str, own: str, found: Sequence[Contrast]) -> str:
    """Write out paired tests of one variant."""
    n = found[0].found.n
    how = f"Paired t-test over {n} seeds, 95 % interval." if n > 1 else "One seed cannot be tested."
    return f"{what}, {own} minus, in points: {'; '.join(map(str, found))}. {how}"


def verdict_notes(results: Results, own: str = OWN) -> list[str]:
    """Say plainly whether PAGE is best or second best in both columns."""
    label, near, notes = name_of(own), [], []
    for column, metric in COLUMNS.items():
        values = column_values(results, metric)
        found = rank(values, label)
        if found is None:
            continue
        near.append(found.place <= 2)
        text = f"{column}: {label} is {ordinal(found.place)} of {found.of}, "
        text += f"{100 * found.own_mean:.2f} %"
        if found.place > 1:
            text += f"; the best is {found.best}, {100 * found.best_mean:.2f} %"
        worse = [c.other for c in contrasts(values, label) if c.verdict == "worse"]
        notes.append(text + (f"; significantly below {', '.join(worse)}" if worse else "") + ".")
    if near:
        said = "IS" if all(near) else "is NOT"
        notes.insert(0, f"{label} {said} best or second best in {_both(len(near))} by the means.")
    return notes


def _both(columns: int) -> str:
    return "both columns" if columns == 2 else "its column"


def ordinal(place: int) -> str:
    """Say a place in words; places from 20 on do not occur."""
    return {1: "best", 2: "second", 3: "third"}.get(place, f"{place}th")
