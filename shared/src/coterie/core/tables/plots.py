"""Bars, lines, curves, heat maps, histograms and differences with their spread, as PNG files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.files import writing
from coterie.core.tables.paired import Comparison, Spread

_MOST_TICKS = 8
_N_COLOURS = 10  # of matplotlib's cycle


@dataclass(frozen=True)
class Lines:
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


@dataclass(frozen=True)
class Bars:
    """One plot of groups of bars, with error bars of one standard deviation.

    Attributes:
        y_label: what the heights are.
        groups: group -> name of the bar -> its height; all groups have the same names.
    """

    y_label: str
    groups: Mapping[str, Mapping[str, Spread]]


@dataclass(frozen=True)
class Heat:
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


@dataclass(frozen=True)
class Histogram:
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


@dataclass(frozen=True)
class Differences:
    """One plot of differences with 95 % intervals; what touches zero may be nothing.

    Attributes:
        x_label: what is subtracted from what.
        series: name -> what is compared with, from top to bottom -> the difference.
    """

    x_label: str
    series: Mapping[str, Mapping[str, Comparison]]

    @property
    def names(self) -> list[str]:
        """What is compared with, of all series."""
        return list(dict.fromkeys(name for group in self.series.values() for name in group))


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
class Curves:
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


Panel = Lines | Bars | Heat | Histogram | Curves | Differences


def plot_panels(
    panels: Sequence[Panel], title: str, path: Path, columns: int | None = None
) -> Path:
    """Draw plots of any kind side by side.

    Args:
        panels: the plots.
        title: of the figure.
        path: file to write.
        columns: plots in a row; None = all in one.

    Raises:
        UserError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    columns = min(columns or len(panels), len(panels))
    rows = -(-len(panels) // columns)
    shares = [max(map(_width, panels[place::columns])) for place in range(columns)]
    figure = Figure(figsize=(sum(shares), rows * max(map(_height, panels))), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, width_ratios=shares).flatten()
    for spare in places[len(panels) :]:
        spare.remove()
    places = places[: len(panels)]
    for axes, panel in zip(places, panels, strict=True):
        match panel:
            case Lines():
                _draw_lines(axes, panel)
            case Bars():
                _draw_bars(axes, panel)
            case Heat():
                _draw_heat(figure, axes, panel)
            case Histogram():
                _draw_histogram(axes, panel)
            case Curves():
                _draw_curves(axes, panel)
            case Differences():
                _draw_differences(axes, panel)
    return _save(figure, title, path)


def _width(panel: Panel) -> float:
    match panel:
        case Bars():
            return 1.5 + 1.6 * max(len(panel.groups), 2)
        case Curves(legend=True):
            return 5.6
        case Differences():
            return 6.4
    return 4.2


def _height(panel: Panel) -> float:
    if isinstance(panel, Differences):
        return 1.3 + 0.22 * len(panel.names) * (len(panel.series) + 1)
    return 3.4


def _sd(spreads: Iterable[Spread]) -> list[float]:
    return [s.sd if s.n > 1 else 0.0 for s in spreads]


def _draw_lines(axes: Any, plot: Lines) -> None:
    for name, spreads in plot.lines.items():
        means = [s.mean for s in spreads]
        axes.errorbar(plot.x, means, _sd(spreads), marker="o", capsize=3, label=name)
    whole = all(isinstance(value, int) for value in plot.x)
    if plot.log:
        axes.set_xscale("log")
        if whole and len(plot.x) <= _MOST_TICKS:
            axes.set_xticks(plot.x, [str(value) for value in plot.x])
            axes.minorticks_off()
    elif whole:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if plot.log_y:
        axes.set_yscale("log")
    if plot.chosen is not None:
        axes.axvline(plot.chosen, color="grey", linestyle=":")
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    axes.legend()


def _draw_curves(axes: Any, plot: Curves) -> None:
    for place, (name, curve) in enumerate(plot.curves.items()):
        means = [s.mean for s in curve.y]
        style, marker = "-" if place < _N_COLOURS else "--", "." if len(means) == 1 else None
        axes.plot(curve.x, means, style, color=f"C{place % _N_COLOURS}", label=name, marker=marker)
        sds = _sd(curve.y)
        if any(sds):
            low, high = ([m + k * sd for m, sd in zip(means, sds, strict=True)] for k in (-1, 1))
            axes.fill_between(
                curve.x, low, high, color=f"C{place % _N_COLOURS}", alpha=0.15, linewidth=0
            )
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if plot.legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def _draw_bars(axes: Any, plot: Bars) -> None:
    groups = list(plot.groups.values())
    names = list(dict.fromkeys(name for group in groups for name in group))
    width = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        x = [group + width * place for group in range(len(groups))]
        spreads = [group[name] for group in groups]
        drawn = axes.bar(x, [s.mean for s in spreads], width, label=name)
        if any(_sd(spreads)):
            axes.errorbar(x, [s.mean for s in spreads], _sd(spreads), fmt="none", ecolor="black")
        else:
            axes.bar_label(drawn, fmt="%.1f", fontsize=8)
    middle = width * (len(names) - 1) / 2
    axes.set_xticks([group + middle for group in range(len(groups))], list(plot.groups))
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel(plot.y_label)
    # Above: a legend in the axes would hide bars.
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8)


def _draw_heat(figure: Any, axes: Any, plot: Heat) -> None:
    from matplotlib.patches import Rectangle
    from numpy import array, ma

    cells = ma.masked_invalid(array(plot.cells, dtype=float))
    image = axes.imshow(cells, origin="lower", aspect="auto")
    figure.colorbar(image, ax=axes, label=plot.label)
    axes.set_xticks(range(len(plot.x)), [f"{value:g}" for value in plot.x])
    axes.set_yticks(range(len(plot.y)), [f"{value:g}" for value in plot.y])
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    if plot.chosen is not None and plot.chosen[0] in plot.x and plot.chosen[1] in plot.y:
        x, y = plot.x.index(plot.chosen[0]), plot.y.index(plot.chosen[1])
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="red", lw=2))


def _draw_histogram(axes: Any, plot: Histogram) -> None:
    values = [value for value in plot.values if math.isfinite(value)]
    axes.hist(values, bins=min(30, max(5, round(len(values) ** 0.5))))
    for place, (label, value) in enumerate(plot.marks.items()):
        axes.axvline(value, color=f"C{place + 1}", linestyle="--", label=label)
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if plot.marks:
        axes.legend()


def _draw_differences(axes: Any, plot: Differences) -> None:
    axes.axvline(0, color="black", linewidth=0.8)
    step = 0.8 / max(len(plot.series), 1)
    for place, (label, group) in enumerate(plot.series.items()):
        middle = step * (place - (len(plot.series) - 1) / 2)
        y = [plot.names.index(name) + middle for name in group]
        x = [found.difference for found in group.values()]
        half = [0.0 if found.n < 2 else found.high - found.difference for found in group.values()]
        axes.errorbar(x, y, xerr=half, fmt="o", capsize=3, label=label)
    axes.set_yticks(range(len(plot.names)), plot.names)
    axes.invert_yaxis()
    axes.set_xlabel(plot.x_label)
    axes.legend()


def _save(figure: Any, title: str, path: Path) -> Path:
    figure.suptitle(title)
    temporary = path.with_name(f".{path.name}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            figure.savefig(temporary, format="png", dpi=150)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path
