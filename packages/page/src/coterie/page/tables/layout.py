"""What the tables share on paper: accuracies in per cent, curves over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from coterie.core.tables.curves import curves
from coterie.core.tables.plots import Curves
from coterie.core.tables.result import RunResult, at_best, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.page.tables.runs import COLUMNS, GLOBAL, LOCAL, OTHERS

THOUSAND = 1e3

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


def four_panels(runs: Mapping[str, Sequence[RunResult]]) -> list[Curves]:
    """Global and local test accuracy, over rounds and over cumulative local steps."""
    return [
        curves(
            runs, name, (label, f"{column} accuracy"), x, legend=x is not None and column == "local"
        )
        for label, x in (("round", None), ("local steps (thousand)", steps_of))
        for column, name in COLUMNS.items()
    ]
