"""Bars, lines and differences with their spread, as PNG files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.storage import writing
from coterie.core.tables.paired import Comparison, Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Lines:
    """One plot of several lines over a hyper-parameter.

    Attributes:
        x_label: the hyper-parameter.
        x: its values.
        lines: name -> a spread for each value.
        log: whether x grows by factors.
        chosen: the value in use, marked by a dotted line.
        y_label: of this plot, where the plots of a figure show different things.
    """

    x_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[Spread]]
    log: bool = False
    chosen: float | None = None
    y_label: str | None = None


def plot_lines(plots: Sequence[Lines], y_label: str, title: str, path: Path) -> Path:
    """Draw plots side by side, with error bars of one standard deviation.

    Raises:
        UserError: the file cannot be written.
    """
    figure = _figure(4.2 * len(plots), 3.4)
    for axes, plot in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots, strict=True):
        for name, spreads in plot.lines.items():
            sd = [s.sd if s.n > 1 else 0.0 for s in spreads]
            axes.errorbar(plot.x, [s.mean for s in spreads], sd, marker="o", capsize=3, label=name)
        if plot.log:
            axes.set_xscale("log")
        elif all(isinstance(value, int) for value in plot.x):
            axes.xaxis.get_major_locator().set_params(integer=True)
        if plot.chosen is not None:
            axes.axvline(plot.chosen, color="grey", linestyle=":")
        axes.set(xlabel=plot.x_label, ylabel=plot.y_label or y_label)
        axes.legend()
    return _save(figure, title, path)


def plot_bars(
    bars: Mapping[str, Mapping[str, float]], y_label: str, title: str, path: Path
) -> Path:
    """Draw groups of bars.

    Args:
        bars: group -> name of the bar -> height; all groups have the same names.
        y_label: what the heights are.
        title: of the figure.
        path: file to write.

    Raises:
        UserError: the file cannot be written.
    """
    names = list(dict.fromkeys(name for group in bars.values() for name in group))
    figure = _figure(1.5 + 1.6 * len(bars), 3.4)
    axes = figure.subplots()
    width = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        x = [group + width * place for group in range(len(bars))]
        drawn = axes.bar(x, [group[name] for group in bars.values()], width, label=name)
        axes.bar_label(drawn, fmt="%.1f", fontsize=8)
    middle = width * (len(names) - 1) / 2
    axes.set_xticks([group + middle for group in range(len(bars))], list(bars))
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel(y_label)
    axes.legend()
    return _save(figure, title, path)


def plot_differences(
    series: Mapping[str, Mapping[str, Comparison]], x_label: str, title: str, path: Path
) -> Path:
    """Draw differences with their 95 % intervals; what touches zero cannot be told from nothing.

    Args:
        series: name -> what is compared with, from top to bottom -> the difference.
        x_label: what is subtracted from what.
        title: of the figure.
        path: file to write.

    Raises:
        UserError: the file cannot be written.
    """
    names = list(dict.fromkeys(name for group in series.values() for name in group))
    figure = _figure(6.4, 1.3 + 0.22 * len(names) * (len(series) + 1))
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    step = 0.8 / max(len(series), 1)
    for place, (label, group) in enumerate(series.items()):
        y = [names.index(name) + step * (place - (len(series) - 1) / 2) for name in group]
        x = [found.difference for found in group.values()]
        half = [0.0 if found.n < 2 else found.high - found.difference for found in group.values()]
        axes.errorbar(x, y, xerr=half, fmt="o", capsize=3, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    axes.legend()
    return _save(figure, title, path)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    return Figure(figsize=(width, height), layout="constrained")


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
