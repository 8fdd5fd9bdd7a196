"""Bars, lines, curves, heat maps, histograms and differences over seeds, as PNG files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.figures import draw_png
from coterie.core.files import writing
from coterie.core.tables.paired import Comparison, Spread, spread
from coterie.core.tables.result import NAN, RunResult, known

_MOST_TICKS = 8
_N_COLOURS = 10  # of matplotlib's cycle


class Panel(ABC):
    """One plot of a figure."""

    @property
    def _size(self) -> tuple[float, float]:
        return 4.2, 3.4

    @abstractmethod
    def _draw(self, axes: Any) -> None: ...


@dataclass(frozen=True)
class Lines(Panel):
    """One plot of several lines over a hyper-parameter.

    Attributes:
        x_label: the hyper-parameter.
        x: its values.
        lines: name -> a spread for each value.
        log: whether x grows by factors.
        chosen: the value in use, marked by a dotted line.
        y_label: what the lines show.
        log_y: whether that grows by factors too.
    """

    x_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[Spread]]
    log: bool = False
    chosen: float | None = None
    y_label: str | None = None
    log_y: bool = False

    def _draw(self, axes: Any) -> None:
        for name, spreads in self.lines.items():
            means = [s.mean for s in spreads]
            axes.errorbar(self.x, means, _sd(spreads), marker="o", capsize=3, label=name)
        whole = all(isinstance(value, int) for value in self.x)
        if self.log:
            axes.set_xscale("log")
            if whole and len(self.x) <= _MOST_TICKS:
                axes.set_xticks(self.x, [str(value) for value in self.x])
                axes.minorticks_off()
        elif whole:
            axes.xaxis.get_major_locator().set_params(integer=True)
        if self.log_y:
            axes.set_yscale("log")
        if self.chosen is not None:
            axes.axvline(self.chosen, color="grey", linestyle=":")
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        _legend_above(axes)


@dataclass(frozen=True)
class Bars(Panel):
    """One plot of groups of bars, with error bars of one standard deviation.

    Attributes:
        y_label: what the heights are.
        groups: group -> name of the bar -> its height; all groups have the same names.
    """

    y_label: str
    groups: Mapping[str, Mapping[str, Spread]]

    @property
    def _size(self) -> tuple[float, float]:
        return 1.5 + 1.6 * max(len(self.groups), 2), 3.4

    def _draw(self, axes: Any) -> None:
        groups = list(self.groups.values())
        names = list(dict.fromkeys(name for group in groups for name in group))
        width = 0.8 / max(len(names), 1)
        for place, name in enumerate(names):
            x = [group + width * place for group in range(len(groups))]
            spreads = [group[name] for group in groups]
            drawn = axes.bar(x, [s.mean for s in spreads], width, label=name)
            if any(sds := _sd(spreads)):
                axes.errorbar(x, [s.mean for s in spreads], sds, fmt="none", ecolor="black")
            else:
                axes.bar_label(drawn, fmt="%.1f", fontsize=8)
        middle = width * (len(names) - 1) / 2
        axes.set_xticks([group + middle for group in range(len(groups))], list(self.groups))
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(self.y_label)
        _legend_above(axes)


@dataclass(frozen=True)
class Heat(Panel):
    """One heat map of a grid of two hyper-parameters; cells that are not finite stay blank.

    Attributes:
        label: what the cells are.
        x_label: the hyper-parameter across.
        x: its values.
        y_label: the hyper-parameter upwards.
        y: its values.
        cells: a row for each y, from the bottom, of a value for each x.
        chosen: x and y in use, marked by a frame.
    """

    label: str
    x_label: str
    x: Sequence[float]
    y_label: str
    y: Sequence[float]
    cells: Sequence[Sequence[float]]
    chosen: tuple[float, float] | None = None

    def _draw(self, axes: Any) -> None:
        from matplotlib.patches import Rectangle

        image = axes.imshow(np.ma.masked_invalid(self.cells), origin="lower", aspect="auto")
        axes.figure.colorbar(image, ax=axes, label=self.label)
        axes.set_xticks(range(len(self.x)), [f"{value:g}" for value in self.x])
        axes.set_yticks(range(len(self.y)), [f"{value:g}" for value in self.y])
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        if self.chosen is not None and self.chosen[0] in self.x and self.chosen[1] in self.y:
            x, y = self.x.index(self.chosen[0]), self.y.index(self.chosen[1])
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="red", lw=2))


@dataclass(frozen=True)
class Histogram(Panel):
    """One plot of how values are spread; those that are not finite are left out.

    Attributes:
        x_label: what the values are.
        values: to be counted.
        y_label: what is counted.
        marks: label -> value at which a dashed line stands.
    """

    x_label: str
    values: Sequence[float]
    y_label: str
    marks: Mapping[str, float] = field(default_factory=dict)

    def _draw(self, axes: Any) -> None:
        values = [value for value in self.values if math.isfinite(value)]
        axes.hist(values, bins=min(30, max(5, round(len(values) ** 0.5))))
        for place, (label, value) in enumerate(self.marks.items()):
            axes.axvline(value, color=f"C{place + 1}", linestyle="--", label=label)
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        axes.yaxis.get_major_locator().set_params(integer=True)
        if self.marks:
            axes.legend()


@dataclass(frozen=True)
class Differences(Panel):
    """One plot of differences with 95 % intervals; what touches zero may be nothing.

    Attributes:
        x_label: what is subtracted from what.
        series: name -> what is compared with, from top to bottom -> the difference.
    """

    x_label: str
    series: Mapping[str, Mapping[str, Comparison]]

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for group in self.series.values() for name in group))

    @property
    def _size(self) -> tuple[float, float]:
        return 6.4, 1.3 + 0.22 * len(self._names) * (len(self.series) + 1)

    def _draw(self, axes: Any) -> None:
        axes.axvline(0, color="black", linewidth=0.8)
        step = 0.8 / max(len(self.series), 1)
        for place, (label, group) in enumerate(self.series.items()):
            middle = step * (place - (len(self.series) - 1) / 2)
            y = [self._names.index(name) + middle for name in group]
            x = [found.difference for found in group.values()]
            half = [0.0 if f.n < 2 else f.high - f.difference for f in group.values()]
            axes.errorbar(x, y, xerr=half, fmt="o", capsize=3, label=label)
        axes.set_yticks(range(len(self._names)), self._names)
        axes.invert_yaxis()
        axes.locator_params(axis="x", nbins=6)  # labels of more overlap in narrow panels
        axes.set_xlabel(self.x_label)
        axes.legend()


@dataclass(frozen=True)
class Curve:
    """One curve with x values of its own.

    Attributes:
        x: ascending.
        y: a spread for each.
    """

    x: Sequence[float]
    y: Sequence[Spread]


@dataclass(frozen=True)
class Curves(Panel):
    """One plot of curves over time, without markers; a band is one standard deviation.

    Attributes:
        x_label: what grows.
        y_label: what is shown.
        curves: name -> curve.
        legend: beside the plot; the plots of a figure may share that of the last one.
    """

    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    legend: bool = True

    @property
    def _size(self) -> tuple[float, float]:
        return 5.6 if self.legend else 4.2, 3.4

    def _draw(self, axes: Any) -> None:
        for place, (name, curve) in enumerate(self.curves.items()):
            means = [s.mean for s in curve.y]
            style, marker = "-" if place < _N_COLOURS else "--", "." if len(means) == 1 else None
            colour = f"C{place % _N_COLOURS}"
            axes.plot(curve.x, means, style, color=colour, label=name, marker=marker)
            sds = _sd(curve.y)
            if any(sds):
                low, high = np.subtract(means, sds), np.add(means, sds)
                axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.locator_params(axis="x", nbins=5)
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        if self.legend:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def plot_panels(
    panels: Sequence[Panel], title: str, path: Path, columns: int | None = None
) -> Path | None:
    """Draw plots of any kind side by side.

    Args:
        panels: the plots.
        title: of the figure.
        path: file to write.
        columns: plots in a row; None = all in one.

    Returns:
        The file; None if it cannot be drawn, which is warned of.

    Raises:
        UserError: the file cannot be written.
    """

    def draw(figure_class: Any) -> Any:
        figure = _laid_out(figure_class, panels, columns)
        figure.suptitle(title, parse_math=False)  # it names data sets
        return figure

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path if draw_png(path, draw) else None


def _laid_out(figure_class: Any, panels: Sequence[Panel], columns: int | None) -> Any:
    columns = min(columns or len(panels), len(panels))
    rows = -(-len(panels) // columns)
    widths, heights = zip(*(panel._size for panel in panels), strict=True)
    shares = [max(widths[place::columns]) for place in range(columns)]
    figure = figure_class(figsize=(sum(shares), rows * max(heights)), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, width_ratios=shares).flatten()
    for spare in places[len(panels) :]:
        spare.remove()
    for axes, panel in zip(places, panels, strict=False):
        panel._draw(axes)
    legend = places[len(panels) - 1].get_legend()
    if legend is not None and len(places) > len(panels):
        legend.set_in_layout(False)  # it has the room of a plot beside it
    return figure


def _legend_above(axes: Any) -> None:
    """Put the legend where it hides neither bars nor their spread."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8)


def _sd(spreads: Iterable[Spread]) -> list[float]:
    return [s.sd if s.n > 1 else 0.0 for s in spreads]


# Curves over rounds and bars of groups, as means over seeds.

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
    legend: bool = True,
) -> Curves:
    """Draw one number of several groups of runs.

    Those that never noted it have a curve without points, so that colours do not move. The other
    arguments are as in `mean_curve` and `Curves`.
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
