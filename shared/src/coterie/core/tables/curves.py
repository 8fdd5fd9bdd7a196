"""Curves over rounds and bars of groups, as means over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Bars, Curve, Curves
from coterie.core.tables.result import NAN, RunResult, known

Rounds = Callable[[RunResult], Sequence[float]]
"""One value a round."""
_MOST_POINTS = 250


def mean_curve(results: Sequence[RunResult], y: Rounds, x: Rounds | None = None) -> Curve:
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
    x: Rounds | None = None,
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


def bars(label: str, groups: Mapping[str, Mapping[str, Sequence[float]]]) -> Bars:
    """Bars of means with one standard deviation; what is known only."""
    return Bars(
        label, {g: {n: spread(known(v)) for n, v in part.items()} for g, part in groups.items()}
    )


def _held(values: Sequence[float], length: int) -> list[float]:
    """Keep the last value known, and go on with it to a length."""
    found, last = [], NAN
    for place in range(length):
        value = values[place] if place < len(values) else NAN
        last = value if value == value else last
        found.append(last)
    return found


def _thinned(places: list[int]) -> list[int]:
    step = -(-len(places) // _MOST_POINTS) or 1
    kept = places[::step]
    return kept if not places or kept[-1] == places[-1] else [*kept, places[-1]]
