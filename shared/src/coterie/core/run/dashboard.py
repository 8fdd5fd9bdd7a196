"""The dashboard of a run as a local picture; W&B has the same panels, see `run.workspace`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import UserError
from coterie.core.figures import Draw, draw_files
from coterie.core.metrics.monitor import VALIDATION, Monitor, of_start
from coterie.core.palette import RIVALS, Surface, readable
from coterie.core.registry.keys import (
    KEYS,
    NAMESPACES,
    PANELS,
    X_AXIS,
    MetricKey,
    Panel,
    documented,
)
from coterie.core.registry.papers import Paper
from coterie.core.run.metrics_file import read_metrics
from coterie.core.run.runfolder import ABOUT
from coterie.core.style import (
    MOST_LABELLED,
    SMALL,
    WIDTH,
    draw_line,
    few_ticks,
    heading,
    in_rows,
    in_thousands,
    mark_point,
    series,
    wrap,
    write_beside,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = Mapping[str, NDArray[np.float64]]
"""Columns of ``metrics.csv`` by name, NaN where a cell is empty."""
COLUMNS = 3
# Inches: of a title, of rows, of the numbers left of a plot and the names right of it, of a letter.
_TITLE, _FIRST, _OTHERS, _NUMBERS, _NAMES, _LETTER = 0.3, 3.1, 2.3, 0.7, 0.95, 0.085
_MOST_BLOCKS = 6
_NAME = 12  # letters of a line of a name
_NOISE = 1e-12


def render(
    run_folder: Path,
    paper: Paper | None = None,
    monitor: Monitor | None = None,
    title: str = "",
    results: Mapping[str, float] | None = None,
) -> list[Path]:
    """Draw the dashboard of one run from its ``metrics.csv``.

    The measure that the run is chosen by comes first, its best round marked in every block. Left
    out are panels without data, of single points, and those in which nothing ever changes; keys of
    the paper that no panel shows get one of their own for each meaning. Faint lines are the starts
    of blocks.

    Args:
        run_folder: folder of a run.
        paper: whose panels are drawn beside the core's.
        monitor: what the best round is chosen by.
        title: of the figure, beside the name of the folder.
        results: of the run, whose test stands beside the best round.

    Returns:
        Files written (``curves.png`` and ``curves.svg``); none for a run without rounds, or if it
        cannot be drawn.

    Raises:
        UserError: there is no readable ``metrics.csv``.
    """
    draw = drawing(run_folder, paper, monitor, title, results)
    return draw_files(run_folder / "curves.png", draw) if draw is not None else []


def drawing(
    run_folder: Path,
    paper: Paper | None = None,
    monitor: Monitor | None = None,
    title: str = "",
    results: Mapping[str, float] | None = None,
) -> Draw | None:
    """What draws the dashboard of a run on a figure of the class that it is given.

    Arguments and errors as for `render`; None for a run without rounds.
    """
    table = _metrics(run_folder)
    chosen = _panels(table, paper, monitor)
    if not chosen:
        return None
    name = ", ".join(filter(None, (title, f"run {run_folder.name}")))
    keys = (*KEYS, *(paper.keys if paper else ()))

    def draw(figure_class: Any, surface: Surface) -> Any:
        counts = [1, *in_rows(len(chosen) - 1, COLUMNS)]
        figure = figure_class(figsize=(WIDTH, _FIRST + _OTHERS * (len(counts) - 1) + _TITLE))
        heading(figure, name)
        named = [len(_measured(table, panel)) > 1 for panel in chosen]
        for panel, place, wide in zip(chosen, _places(counts, named), _widths(counts), strict=True):
            ax = figure.add_axes(_share(place, figure.get_size_inches()))
            _draw(ax, panel, table, surface)
            _label(ax, panel, keys)
            if monitor is not None and monitor.key in panel.keys and panel.x == X_AXIS:
                _mark(ax, table, monitor, results or {}, surface)
            words = wrap(ax.get_title("left"), int((wide - _NUMBERS) / _LETTER), 2)
            ax.set_title(words, loc="left", parse_math=False)
        return figure

    return draw


def drawing_again(run_folder: Path, paper: Paper, title: str) -> Draw | None:
    """The same as when the run ended, from the files of its folder.

    Raises:
        UserError: one is damaged.
    """
    about, summary = (_saved(run_folder / name) for name in (ABOUT, "summary.json"))
    known = about.get("monitor")  # older versions did not write it down
    monitor = None if known is None else Monitor(known["key"], known["lower_is_better"])
    metrics = summary.get("metrics") or {}
    results = {name: float("nan") if v is None else float(v) for name, v in metrics.items()}
    return drawing(run_folder, paper, monitor, title, results)


def _saved(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _places(counts: Sequence[int], named: Sequence[bool]) -> list[tuple[float, ...]]:
    """Left, top, width and height of plots in inches, in rows that are all full.

    Matplotlib's own layouts draw every text once more to find its size: a second for thirty plots.

    Args:
        counts: plots in each row.
        named: whether a plot has names at the ends of its lines.
    """
    found: list[tuple[float, ...]] = []
    top = _TITLE
    for row, count in enumerate(counts):
        high = _OTHERS if row else _FIRST
        for column in range(count):
            right = _NAMES if named[len(found)] else 0.2
            left = column * WIDTH / count + _NUMBERS
            found.append((left, top + 0.45, WIDTH / count - _NUMBERS - right, high - 0.95))
        top += high
    return found


def _widths(counts: Sequence[int]) -> list[float]:
    """Inches that each plot has with its numbers and names."""
    return [WIDTH / count for count in counts for _ in range(count)]


def _share(place: tuple[float, ...], size: tuple[float, float]) -> tuple[float, ...]:
    """The same as shares of a figure, from its lower left corner."""
    (left, top, wide, high), (width, height) = place, size
    return left / width, 1 - (top + high) / height, wide / width, high / height


def titled(settings: Any) -> str:
    """Say in words what a run is of, from the settings of any paper."""
    return f"{settings.method} on {settings.data.name}, seed {settings.seed}"


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
        found = {n: np.array([float(line[n] or "nan") for line in lines]) for n in columns}
    except ValueError as error:
        raise UserError(f"{path} is no table of metrics: {error}") from error
    # What is infinite, as the imbalance where a client finds nothing, has no place on an axis.
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in found.items()}


def _panels(table: Table, paper: Paper | None, monitor: Monitor | None) -> list[Panel]:
    """List what is drawn: the monitor's panel, the paper's, the core's, and what no panel shows."""
    panels = [*(paper.panels if paper else ()), *PANELS]
    if monitor is not None:
        shown = [p for p in panels if monitor.key in p.keys and p.x == X_AXIS]
        own = Panel(f"{monitor.key.partition('/')[2]}, by which rounds are chosen", (monitor.key,))
        first = [*shown, own][0]
        panels = [first, *(panel for panel in panels if panel is not first)]
    known = {key for panel in panels for key in panel.keys}
    others: dict[str, list[str]] = {}  # by meaning: a key of every block is one curve each
    for name in table:
        of_a_paper = "/" in name and name.partition("/")[0] not in NAMESPACES
        if of_a_paper and name not in known:
            found = documented(name, paper.keys if paper else ())
            others.setdefault(found.meaning if found else name, []).append(name)
    panels += [Panel(meaning, tuple(names)) for meaning, names in others.items()]
    there = [panel for panel in panels if panel.x in table and _measured(table, panel)]
    chosen_by = there[:1] if monitor is not None and there and monitor.key in there[0].keys else []
    moving = [panel for panel in there if panel in chosen_by or _changes(table, panel)]
    return moving or [panel for panel in there if _is_point(table, panel)]


def _measured(table: Table, panel: Panel) -> list[str]:
    return [key for key in panel.keys if key in table and not np.isnan(table[key]).all()]


def _changes(table: Table, panel: Panel) -> bool:
    """Whether there is a curve that is neither flat nor zero but for rounding."""
    values = [table[key][~np.isnan(table[key])] for key in _measured(table, panel)]
    return any(np.ptp(some) > max(_NOISE, 1e-6 * np.abs(some).max()) for some in values)


def _is_point(table: Table, panel: Panel) -> bool:
    """Whether a run has measured something once, as in its first round."""
    return any(np.count_nonzero(~np.isnan(table[key])) == 1 for key in _measured(table, panel))


def _draw(ax: Axes, panel: Panel, table: Table, surface: Surface) -> None:
    keys = _measured(table, panel)
    chosen = series([panel.name_of(key) for key in keys])
    for place, key in enumerate(keys):
        x, y, name = table[panel.x], table[key], panel.name_of(key)
        known = ~(np.isnan(x) | np.isnan(y))
        look = replace(chosen[name], named=len(keys) > 1 and place < MOST_LABELLED)
        draw_line(ax, x[known].tolist(), y[known].tolist(), look, name, surface, letters=_NAME)
    for start in table[panel.x][1:][np.diff(table["block"]) > 0]:
        ax.axvline(start, color=surface.faint, linewidth=0.8, zorder=0)


def _label(ax: Axes, panel: Panel, keys: Sequence[MetricKey]) -> None:
    """Write title, names and units; rounds are whole."""
    ax.set_title(panel.title, loc="left")
    of_x = documented(panel.x, keys)
    ax.set_xlabel("round" if panel.x == X_AXIS or of_x is None else _first_words(of_x))
    for axis, key in ((ax.xaxis, panel.x), (ax.yaxis, panel.keys[0])):
        found = documented(key, keys)
        unit = found.unit if found else "1"
        few_ticks(axis, whole=key == X_AXIS, most=4 if axis is ax.yaxis or key == X_AXIS else 3)
        if unit == "bytes":
            in_thousands(axis, "B")
        elif key != X_AXIS and max(map(abs, axis.get_view_interval())) >= 1e4:
            in_thousands(axis)
        if unit not in ("1", "bytes") and axis is ax.yaxis:
            ax.set_ylabel(unit)


def _first_words(key: MetricKey) -> str:
    """What an axis is, in short: the unit, unless the meaning begins with it."""
    return key.meaning if key.unit in key.meaning else f"{key.unit} {key.meaning}"


def rules(monitor: Monitor, results: Mapping[str, float]) -> dict[str, float]:
    """What rules without training have on the test, by name, in the measure of the best round.

    Example:
        >>> rules(Monitor("eval/auc"), {"test/auc": 0.8, "test/popularity/auc": 0.6})
        {'popularity': 0.6}
    """
    name, found = monitor.key.removeprefix(VALIDATION), {}
    for key, value in results.items():
        first, *middle, measure = key.split("/")
        rule = middle[0] if len(middle) == 1 and first == "test" and measure == name else "block"
        if not rule.startswith("block") and rule != "average" and np.isfinite(value):
            found[rule] = value
    return found


def _draw_rules(ax: Axes, found: Mapping[str, float], surface: Surface) -> None:
    """Draw what needs no training as dotted lines; they are of the test, as no round has it."""
    for rule, value in found.items():
        ax.axhline(value, color=RIVALS, linestyle=":", linewidth=1.0, zorder=1)
        ax.annotate(
            f"{rule}, test", (1.0, value), xycoords=ax.get_yaxis_transform(), xytext=(-3, 2),
            textcoords="offset points", va="bottom", ha="right", fontsize=SMALL,
            color=readable(RIVALS, surface),
        )  # fmt: skip


def _mark(
    ax: Axes, table: Table, monitor: Monitor, results: Mapping[str, float], surface: Surface
) -> None:
    """Mark the best round of every block, and write its test above; draw what needs no training."""
    best = {int(table["block"][row]): row for row in best_rounds(table, monitor)}
    for row in best.values():
        mark_point(ax, (table[X_AXIS][row], table[monitor.key][row]), surface)
    _draw_rules(ax, rules(monitor, results), surface)
    name, blocks = monitor.key.removeprefix(VALIDATION), np.unique(table["block"]).astype(int)
    said = {}
    for block, row in best.items():
        tested = results.get(f"test/block{block}/{name}", results.get(f"test/{name}"))
        said[block] = [f"round {table[X_AXIS][row]:.0f}"]
        said[block] += [f"test {tested:.4f}"] if tested is not None else []
    if len(blocks) == 1:
        found = [f"best in {', '.join(words)}" for words in said.values()]
        ax.set_title("; ".join([ax.get_title("left"), *found]), loc="left")
    elif best:
        ax.set_title(f"{ax.get_title('left')}; ring: best round of a block", loc="left")
    if 1 < len(blocks) <= _MOST_BLOCKS:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.4 * (high - low))  # room for words
        for block in blocks:
            start = table[X_AXIS][table["block"] == block].min()
            words = "\n".join([f"block {block}", *said.get(block, [])])
            write_beside(ax, start, words, 1.0, readable(RIVALS, surface))
