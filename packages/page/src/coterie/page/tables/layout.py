"""What the tables share on paper: accuracies in per cent, curves, and tests paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from coterie.core.style import Roles
from coterie.core.tables.means import curves
from coterie.core.tables.paired import Contrast, contrasts, rank
from coterie.core.tables.plots import SHARE, Curves
from coterie.core.tables.result import RunResult, at_best, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.page.tables.study import COLUMNS, GLOBAL, LOCAL, NAMES, OTHERS, OWN, Study

THOUSAND = 1e3
BASELINES = (NAMES["local"], NAMES["central"])
"""What no federation is needed for."""

percent = partial(cell, digits=2, scale=100)
"""Write shares in per cent, and the paper's share beside."""
plain = partial(cell, digits=0)
"""Write mean ± standard deviation of the values that are known."""


def accuracies(results: Sequence[RunResult], papers: tuple[float | None, ...]) -> dict[str, Any]:
    """The two columns of the paper, of the best round on validation data, for people."""
    pairs = zip(COLUMNS.items(), papers, strict=True)
    return {f"{c} acc %": percent(at_best(results, name), paper) for (c, name), paper in pairs}


def add_accuracies(
    sheet: Sheet[Any],
    method: str,
    results: Sequence[RunResult],
    papers: tuple[float | None, ...] = (None, None),
    **more: Any,
) -> None:
    """Add all accuracies of the best round and the test of the last one, in rows for programs."""
    printed = dict(zip(COLUMNS.values(), papers, strict=True))
    names = [f"{part}/{name}" for part in ("test", "eval") for name in (GLOBAL, LOCAL, OTHERS)]
    values = {name: at_best(results, name) for name in names}
    for name in (GLOBAL, LOCAL, OTHERS):
        values[f"last/{name}"] = [result.last(f"test/{name}") for result in results]
    values["best_round"] = [float(result.best_round) for result in results]
    values["rounds"] = [float(result.rounds) for result in results]
    for name in ("local_steps", "up_bytes", "down_bytes", "cpu_seconds"):
        values[f"cost/{name}"] = [result.total(f"cost/{name}") for result in results]
    for name, numbers in values.items():
        if known(numbers):
            sheet.row(method, name, numbers, printed.get(name), **more)


def steps_of(result: RunResult) -> list[float]:
    """Local steps of all clients up to and with each round, in thousands."""
    return [value / THOUSAND for value in result.cumulative("cost/local_steps")]


def four_panels(runs: Mapping[str, Sequence[RunResult]], own: str = NAMES[OWN]) -> list[Curves]:
    """Global and local test accuracy, over rounds and over cumulative local steps."""
    return [
        curves(
            runs,
            name,
            (label, f"{column} test accuracy"),
            x,
            roles=Roles(own, BASELINES, "higher"),
            bounds=SHARE,
        )
        for label, x in (("round", None), ("local steps (thousand)", steps_of))
        for column, name in COLUMNS.items()
    ]


# How PAGE compares with the other methods: ranks, and tests paired over seeds.


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
