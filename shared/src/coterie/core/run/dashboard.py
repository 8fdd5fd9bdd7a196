"""The dashboard of a run as a local PNG; W&B has the same panels (`coterie.core.run.workspace`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import UserError
from coterie.core.figures import draw_png
from coterie.core.metrics.monitor import Monitor, of_start
from coterie.core.registry.keys import KEYS, NAMESPACES, PANELS, X_AXIS, Panel, documented
from coterie.core.registry.papers import Paper
from coterie.core.run.metrics_file import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = Mapping[str, NDArray[np.float64]]
"""Columns of ``metrics.csv`` by name, NaN where a cell is empty."""
COLUMNS = 3


def render(
    run_folder: Path, paper: Paper | None = None, monitor: Monitor | None = None, title: str = ""
) -> list[Path]:
    """Draw the dashboard of one run from its ``metrics.csv``.

    The measure that the run is chosen by comes first, its best round marked in every block. Left
    out are panels without data and those in which nothing ever changes; keys of the paper that no
    panel shows get one of their own for each meaning. Grey lines are the starts of blocks.

    Args:
        run_folder: folder of a run.
        paper: whose panels are drawn beside the core's.
        monitor: what the best round is chosen by.
        title: of the figure, beside the name of the folder.

    Returns:
        Files written (``curves.png``); none for a run without rounds, or if it cannot be drawn.

    Raises:
        UserError: there is no readable ``metrics.csv``.
    """
    draw = drawing(run_folder, paper, monitor, title)
    path = run_folder / "curves.png"
    return [path] if draw is not None and draw_png(path, draw, dpi=120) else []


def drawing(
    run_folder: Path, paper: Paper | None = None, monitor: Monitor | None = None, title: str = ""
) -> Callable[[Any], Any] | None:
    """What draws the dashboard of a run on a figure of the class that it is given.

    Arguments and errors as for `render`; None for a run without rounds.
    """
    table = _metrics(run_folder)
    chosen = _panels(table, paper, monitor)
    if not chosen:
        return None
    heading = ", ".join(filter(None, (run_folder.name, title)))
    units = {key.name: key.unit for key in (*KEYS, *(paper.keys if paper else ()))}

    def draw(figure_class: Any) -> Any:
        rows = -(-len(chosen) // COLUMNS)
        width, height = 4.5 * COLUMNS, 3.0 * rows + 0.4
        figure = figure_class(figsize=(width, height))
        # Of a name, so no formula: a single $ in it would be half of one.
        figure.suptitle(heading, y=1 - 0.1 / height, va="top", fontsize=12, parse_math=False)
        axes = figure.subplots(
            rows, COLUMNS, squeeze=False, gridspec_kw=_margins(width, height)
        ).flatten()
        for ax, panel in zip(axes, chosen, strict=False):
            _draw(ax, panel, table)
            _label(ax, panel, units)
            if monitor is not None and monitor.key in panel.keys and panel.x == X_AXIS:
                _mark(ax, table, monitor)
        for ax in axes[len(chosen) :]:
            ax.remove()
        return figure

    return draw


def _margins(width: float, height: float) -> dict[str, float]:
    """Room for names and ticks, the same for all panels; of a figure's size in inches.

    Matplotlib's own layouts draw every text once more to find it: a second for thirty panels.
    """
    return {
        "left": 0.8 / width,
        "right": 1 - 0.15 / width,
        "bottom": 0.5 / height,
        "top": 1 - 0.75 / height,
        "wspace": 0.27,
        "hspace": 0.42,
    }


def best_rounds(table: Table, monitor: Monitor) -> list[int]:
    """Find the row of the best round of every block; none where nothing was measured.

    Nor is there one where no round is better than what the block started from.

    Example:
        >>> table = {"block": np.zeros(3), "eval/auc": np.array([0.6, np.nan, 0.7])}
        >>> best_rounds(table, Monitor("eval/auc"))
        [2]
    """
    scores = table.get(monitor.key, np.empty(0))
    starts = table.get(of_start(monitor.key), np.full(len(scores), np.nan))
    started = {float(table["block"][row]): starts[row] for row in _known(starts)}
    best: dict[float, int] = {}
    for row in _known(scores):
        block = float(table["block"][row])
        if block not in best or monitor.better(scores[row], than=scores[best[block]]):
            best[block] = row
    return [
        row
        for block, row in sorted(best.items())
        if monitor.better(scores[row], than=started.get(block, np.nan))
    ]


def _known(values: np.ndarray) -> list[int]:
    """Rows with a number."""
    return np.flatnonzero(~np.isnan(values)).tolist()


def _metrics(run_folder: Path) -> Table:
    path, (columns, lines) = run_folder / "metrics.csv", read_metrics(run_folder)
    if not columns:
        raise UserError(f"{path} is missing or empty: name the folder of a run that has started")
    try:
        return {n: np.array([float(line[n] or "nan") for line in lines]) for n in columns}
    except ValueError as error:
        raise UserError(f"{path} is no table of metrics: {error}") from error


def _panels(table: Table, paper: Paper | None, monitor: Monitor | None) -> list[Panel]:
    """List what is drawn: the monitor's panel, the paper's, the core's, and what no panel shows."""
    panels = [*(paper.panels if paper else ()), *PANELS]
    if monitor is not None:
        shown = [p for p in panels if monitor.key in p.keys and p.x == X_AXIS]
        first = [*shown, Panel(f"{monitor.key}, by which rounds are chosen", (monitor.key,))][0]
        panels = [first, *(panel for panel in panels if panel is not first)]
    known = {key for panel in panels for key in panel.keys}
    others: dict[str, list[str]] = {}  # by meaning: a key of every block is one curve each
    for name in table:
        of_a_paper = "/" in name and name.partition("/")[0] not in NAMESPACES
        if of_a_paper and name not in known:
            found = documented(name, paper.keys if paper else ())
            others.setdefault(found.meaning if found else name, []).append(name)
    panels += [Panel(meaning, tuple(names)) for meaning, names in others.items()]
    return [panel for panel in panels if panel.x in table and _changes(table, panel)]


def _measured(table: Table, panel: Panel) -> list[str]:
    return [key for key in panel.keys if key in table and not np.isnan(table[key]).all()]


def _changes(table: Table, panel: Panel) -> bool:
    """Whether there is something to see: a curve that is not flat but for rounding, or a point."""
    values = [table[key][~np.isnan(table[key])] for key in _measured(table, panel)]
    return any(len(some) == 1 or np.ptp(some) > 1e-6 * np.abs(some).max() for some in values)


def _draw(ax: Axes, panel: Panel, table: Table) -> None:
    keys = _measured(table, panel)
    for key in keys:
        x, y = table[panel.x], table[key]
        known = ~(np.isnan(x) | np.isnan(y))
        marker = "." if known.sum() < 2 else None
        ax.plot(x[known], y[known], label=key, linewidth=1.2, marker=marker)
    for start in table[panel.x][1:][np.diff(table["block"]) > 0]:
        ax.axvline(start, color="0.8", linewidth=0.8, zorder=0)
    if len(keys) > 1:
        ax.legend(fontsize=7)


def _label(ax: Axes, panel: Panel, units: Mapping[str, str]) -> None:
    """Write title, names and units; rounds are whole."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, ScalarFormatter

    ax.set_title(panel.title, fontsize=10)
    ax.set_xlabel(panel.x, fontsize=8)
    ax.tick_params(labelsize=8)
    for axis, key in ((ax.xaxis, panel.x), (ax.yaxis, panel.keys[0])):
        unit = units.get(key, "1")
        if unit == "bytes":
            axis.set_major_formatter(EngFormatter(unit="B"))
        elif key == X_AXIS:
            axis.set_major_locator(MaxNLocator(integer=True))
        elif unit != "1" and axis is ax.yaxis:
            ax.set_ylabel(unit, fontsize=8)
        if isinstance(formatter := axis.get_major_formatter(), ScalarFormatter):
            formatter.set_useOffset(False)


def _mark(ax: Axes, table: Table, monitor: Monitor) -> None:
    """Mark the best round of every block."""
    best = best_rounds(table, monitor)
    if not best:
        return
    ax.plot(
        table[X_AXIS][best],
        table[monitor.key][best],
        linestyle="none",
        marker="o",
        markerfacecolor="none",
        color="black",
        label="best round",
    )
    ax.legend(fontsize=7)
