"""What the tables share on paper: accuracies in per cent, curves over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.core.tables.contrast import has_numbers
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Bars, Curve, Curves
from coterie.core.tables.result import RunResult, at_best, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.page.tables.runs import COLUMNS, GLOBAL, LOCAL, OTHERS

THOUSAND = 1e3
_MOST_POINTS = 250
Values = Callable[[RunResult], Sequence[float]]

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
        if has_numbers(numbers):
            sheet.row(method, name, numbers, printed.get(name), **more)


def mean_curve(results: Sequence[RunResult], y: Values, x: Values | None = None) -> Curve:
    """Average the runs of all seeds at each measured round; one that has stopped stays.

    Args:
        results: one a seed.
        y: one value a round; NaN where there is none.
        x: likewise, as the cumulative steps; None = the number of the round.
    """
    longest = max((result.rounds for result in results), default=0)
    held = np.array([_held(y(result), longest) for result in results])
    across = np.array(
        [
            np.arange(1, longest + 1) if x is None else _held(x(result), longest)
            for result in results
        ]
    )
    seen = np.zeros(longest, dtype=bool)
    for result in results:
        values = np.asarray(y(result), dtype=float)
        seen[: len(values)] |= ~np.isnan(values)
    shown = _thinned([place for place in seen.nonzero()[0].tolist() if has_numbers(held[:, place])])
    return Curve(
        [float(across[:, place].mean()) for place in shown],
        [spread(held[~np.isnan(held[:, place]), place]) for place in shown],
    )


def curves(
    runs: Mapping[str, Sequence[RunResult]],
    name: str,
    labels: tuple[str, str],
    x: Values | None = None,
    legend: bool = True,
) -> Curves:
    """Draw one number of several groups of runs.

    Those that never noted it have a curve without points, so that colours do not move.

    Args:
        runs: label -> runs of all seeds.
        name: of the number.
        labels: of the axes.
        x: see `mean_curve`.
        legend: whether to name the groups beside the plot.
    """
    found = {
        label: mean_curve(results, lambda run: run.curve(name), x)
        for label, results in runs.items()
    }
    return Curves(*labels, found, legend)


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


def bars(label: str, groups: Mapping[str, Mapping[str, Sequence[float]]]) -> Bars:
    """Bars of means with one standard deviation; what is known only."""
    return Bars(
        label, {g: {n: spread(known(v)) for n, v in part.items()} for g, part in groups.items()}
    )


def _held(values: Sequence[float], length: int) -> list[float]:
    """Keep the last value known, and go on with it to a length."""
    found, last = [], float("nan")
    for place in range(length):
        value = values[place] if place < len(values) else float("nan")
        last = value if value == value else last
        found.append(last)
    return found


def _thinned(places: list[int]) -> list[int]:
    step = -(-len(places) // _MOST_POINTS) or 1
    kept = places[::step]
    return kept if not places or kept[-1] == places[-1] else [*kept, places[-1]]
