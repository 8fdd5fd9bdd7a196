"""What the tables share on paper: accuracies in per cent, curves over seeds, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.core.tables import figures
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import Bars, Curve, Curves, Panel
from coterie.page.tables.runs import GLOBAL, LOCAL, OTHERS, RunResult
from coterie.page.tables.study import Study, at_best

THOUSAND = 1e3
_MOST_POINTS = 250
Values = Callable[[RunResult], Sequence[float]]

figure_report = partial(figures.figure_report, columns=2)
"""Draw panels, two in a row, and put them beside their numbers."""


def percent(values: Sequence[float], paper: float | None = None) -> str | None:
    """Write shares in per cent, and the paper's share beside; None where none is known.

    Example:
        >>> percent([0.91, 0.93], 0.9146), percent([float("nan")])
        ('92.00 ± 1.41 (91.46)', None)
    """
    known = [100 * value for value in values if value == value]
    if not known:
        return None
    return plain(known, 2) + ("" if paper is None else f" ({100 * paper:.2f})")


def plain(values: Sequence[float], digits: int = 0) -> str:
    """Write mean ± standard deviation of the values that are known.

    Example:
        >>> plain([10.0, 12.0]), plain([1234.5], 1), plain([])
        ('11 ± 1', '1,234.5', '-')
    """
    found = spread([value for value in values if value == value])
    if not found.n:
        return "-"
    text = f"{found.mean:,.{digits}f}"
    return text if found.n < 2 else f"{text} ± {found.sd:,.{digits}f}"


def accuracies(results: Sequence[RunResult], papers: tuple[float | None, ...]) -> dict[str, Any]:
    """The two columns of the paper, of the best round on validation data, for people."""
    pairs = zip(("global acc %", "local acc %"), (GLOBAL, LOCAL), papers, strict=True)
    return {label: percent(at_best(results, f"test/{n}"), paper) for label, n, paper in pairs}


def accuracy_rows(
    study: Study,
    method: str,
    results: Sequence[RunResult],
    papers: tuple[float | None, ...] = (None, None),
    **more: Any,
) -> list[dict[str, Any]]:
    """All accuracies of the best round and the test of the last one, in rows for programs."""
    printed = dict(zip((f"test/{GLOBAL}", f"test/{LOCAL}"), papers, strict=True))
    names = [f"{part}/{name}" for part in ("test", "eval") for name in (GLOBAL, LOCAL, OTHERS)]
    values = {name: at_best(results, name) for name in names}
    lasts = (f"test/{name}" for name in (GLOBAL, LOCAL, OTHERS))
    values |= {name.replace("test/", "last/"): [r.last(name) for r in results] for name in lasts}
    values["best_round"] = [float(result.best_round) for result in results]
    values["rounds"] = [float(result.rounds) for result in results]
    costs = ("local_steps", "up_bytes", "down_bytes", "cpu_seconds")
    values |= {f"cost/{name}": [r.total(f"cost/{name}") for r in results] for name in costs}
    return [
        study.row(method, name, numbers, printed.get(name), **more)
        for name, numbers in values.items()
        if not np.isnan(numbers).all()
    ]


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
    shown = _thinned([place for place in seen.nonzero()[0].tolist() if known(held[:, place])])
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


def four_panels(runs: Mapping[str, Sequence[RunResult]]) -> list[Panel]:
    """Global and local test accuracy, over rounds and over cumulative local steps."""
    columns = {f"test/{GLOBAL}": "global accuracy", f"test/{LOCAL}": "local accuracy"}
    panels: list[Panel] = [
        curves(runs, name, ("round", label), legend=False) for name, label in columns.items()
    ]
    thousand = "local steps (thousand)"
    return [
        *panels,
        *(
            curves(runs, name, (thousand, label), steps_of, legend=name.endswith(LOCAL))
            for name, label in columns.items()
        ),
    ]


def bars(label: str, groups: Mapping[str, Mapping[str, Sequence[float]]]) -> Bars:
    """Bars of means with one standard deviation; what is known only."""
    return Bars(label, {g: {n: _known(v) for n, v in part.items()} for g, part in groups.items()})


def known(values: Sequence[float] | np.ndarray[Any, Any]) -> bool:
    """Whether any value is a number."""
    return not bool(np.isnan(np.asarray(values, dtype=float)).all())


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


def _known(values: Sequence[float]) -> Spread:
    return spread([value for value in values if value == value])
