"""Curves over rounds and dots of groups, as means over the runs of several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.tables.dots import Dots
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Curve, Curves
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
    measured = _stacked([y(result) for result in results], longest)
    held = _held(measured)
    steps = [range(1, longest + 1)] if x is None else [x(result) for result in results]
    across = _held(_stacked(steps, longest))
    shown = _thinned(np.flatnonzero(~np.isnan(measured).all(0)).tolist())
    return Curve(
        [float(across[:, place].mean()) for place in shown],
        [spread(known(held[:, place])) for place in shown],
    )


def curves(
    runs: Mapping[str, Sequence[RunResult]],
    name: str,
    labels: tuple[str, str],
    x: Rounds | None = None,
    **about: Any,
) -> Curves:
    """Draw one number of several groups of runs.

    Those that never noted it have a curve without points, so that colours do not move. The other
    arguments are as in `mean_curve` and `Curves`.
    """
    found = {
        label: mean_curve(results, lambda run: run.curve(name), x)
        for label, results in runs.items()
    }
    return Curves(*labels, found, **about)


def dots(label: str, groups: Mapping[str, Mapping[str, Sequence[float]]], **about: Any) -> Dots:
    """Dots of means with one standard deviation, of what is known; other arguments as in `Dots`."""
    found = {g: {n: spread(known(v)) for n, v in part.items()} for g, part in groups.items()}
    return Dots(label, found, **about)


def _stacked(runs: Sequence[Sequence[float]], length: int) -> NDArray[np.float64]:
    table = np.full((len(runs), length), NAN)
    for row, values in zip(table, runs, strict=True):
        row[: len(values)] = values
    return table


def _held(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where a run has no value, its last one; NaN before the first."""
    last = np.where(np.isnan(table), 0, np.arange(table.shape[1]))
    return np.take_along_axis(table, np.maximum.accumulate(last, axis=1), axis=1)


def _thinned(places: list[int]) -> list[int]:
    step = -(-len(places) // _MOST_POINTS) or 1
    kept = places[::step]
    return kept if not places or kept[-1] == places[-1] else [*kept, places[-1]]
