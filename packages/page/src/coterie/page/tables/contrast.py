"""How PAGE compares with the other methods: ranks, and tests paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.core.tables.contrast import Contrast, contrasts, rank
from coterie.core.tables.result import at_best
from coterie.core.tables.study import Results
from coterie.page.tables.runs import COLUMNS
from coterie.page.tables.study import OWN, Study


def column_values(results: Results, metric: str) -> dict[str, Sequence[float]]:
    """A number of the best round of every method, by the method's printed name."""
    return {Study.name_of(method): at_best(part, metric) for method, part in results.items()}


def comparison(results: Results, column: str, own: str = OWN, label: str = "") -> list[str]:
    """Write out the paired tests of one against every other in a column; a line, if there are."""
    name = Study.name_of(own)
    found = contrasts(column_values(results, COLUMNS[column]), name)
    return [difference_note(f"{column} accuracy", label or name, found)] if found else []


def comparison_notes(results: Results, own: str = OWN, label: str = "") -> list[str]:
    """Write out the paired tests of one method against every other, a line for each column."""
    return [note for column in COLUMNS for note in comparison(results, column, own, label)]


def difference_note(what: str, own: str, found: Mapping[str, Contrast]) -> str:
    """Write out paired tests of one variant."""
    said = [f"{c.text(digits=2, scale=100)}, {c.verdict}" for c in found.values()]
    n = next(iter(found.values())).found.n
    how = f"Paired t-test over {n} seeds, 95 % interval." if n > 1 else "One seed cannot be tested."
    return f"{what}, {own} minus, in points: {'; '.join(said)}. {how}"


def verdict_notes(results: Results, own: str = OWN) -> list[str]:
    """Say plainly whether PAGE is best or second best in both columns."""
    label, near, notes = Study.name_of(own), [], []
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
        worse = [c.other for c in contrasts(values, label).values() if c.verdict == "worse"]
        notes.append(text + (f"; significantly below {', '.join(worse)}" if worse else "") + ".")
    if near:
        said = "IS" if all(near) else "is NOT"
        both = "both columns" if len(near) == 2 else "its column"
        notes.insert(0, f"{label} {said} best or second best in {both} by the means.")
    return notes


def ordinal(place: int) -> str:
    """Say a place in words; places from 20 on do not occur."""
    return {1: "best", 2: "second", 3: "third"}.get(place, f"{place}th")
