"""Figures of plots in full rows, as PNG and SVG, with their numbers beside them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import UserError
from coterie.core.figures import draw_files
from coterie.core.files import write_text, writing
from coterie.core.palette import Surface
from coterie.core.style import WIDTH, Roles, grid, heading, in_rows, small_print
from coterie.core.tables.dots import Differences, Dots, Rows
from coterie.core.tables.grids import Heat, Histogram
from coterie.core.tables.paired import Comparison, Spread
from coterie.core.tables.plots import Curve, Curves, Lines, Panel

NUMBERS = ".panels.json"
"""How the file ends of which a picture can be drawn again."""


def plot_panels(
    panels: Sequence[Panel], title: str, path: Path, columns: int | None = None
) -> Path | None:
    """Draw plots of any kind side by side: ``NAME.png``, ``NAME.svg``, ``NAME-dark.svg``.

    The numbers are in ``NAME.panels.json``, from which `redraw` draws the same.

    Args:
        panels: the plots.
        title: of the figure.
        path: PNG to write.
        columns: plots in a row, if there is room for so many; None = as many as have room.

    Returns:
        The PNG; None if it cannot be drawn, which is warned of.

    Raises:
        UserError: the files cannot be written.
    """
    kinds = [{"kind": type(panel).__name__, **_written(panel)} for panel in panels]
    kept = [_read(panel) for panel in kinds]  # what is drawn is what is in the file

    def draw(figure_class: Any, surface: Surface) -> Any:
        return laid_out(figure_class, kept, title, columns, surface)

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"title": title, "columns": columns, "panels": kinds}
        write_text(path.with_suffix(NUMBERS), json.dumps(about, ensure_ascii=False) + "\n")
        return path if draw_files(path, draw, dark=True) else None


def redraw(numbers: Path) -> Path | None:
    """Draw a picture again from its numbers.

    Args:
        numbers: ``NAME.panels.json``.

    Returns:
        ``NAME.png``; None if it cannot be drawn, which is warned of.

    Raises:
        UserError: the file is none that `plot_panels` wrote, or nothing can be written beside it.
    """
    if not numbers.name.endswith(NUMBERS):
        raise UserError(f"{numbers} is no NAME{NUMBERS}: name the numbers beside a picture")
    try:
        about = json.loads(numbers.read_text(encoding="utf-8"))
        panels = [_read(panel) for panel in about["panels"]]
        title, columns = about["title"], about["columns"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{numbers} is no file of numbers of a picture: {error!r}") from error
    path = numbers.with_name(numbers.name.removesuffix(NUMBERS) + ".png")
    return plot_panels(panels, title, path, columns)


def laid_out(
    figure_class: Any, panels: Sequence[Panel], title: str, columns: int | None, surface: Surface
) -> Any:
    """Draw plots in rows that are all full, those of the same measure on the same scale."""
    room = max(1, int(WIDTH // max(panel.least_width for panel in panels)))
    counts = in_rows(len(panels), min(room, columns or room))
    starts = [sum(counts[:row]) for row in range(len(counts))]
    rows = [panels[start : start + count] for start, count in zip(starts, counts, strict=True)]
    heights = [max(panel.height for panel in row) for row in rows]
    notes = _notes(panels)
    size = WIDTH, sum(heights) + 0.45 + 0.25 * len(notes)
    figure = figure_class(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    drawn = list(zip(panels, grid(figure, counts, heights), strict=True))
    for panel, axes in drawn:
        panel.draw(axes, surface)
    for start, row in zip(starts, rows, strict=True):
        _name_rows_once(drawn[start : start + len(row)])
    _same_scale(drawn)
    heading(figure, title)
    small_print(figure, notes)
    return figure


def _name_rows_once(row: Sequence[tuple[Panel, Any]]) -> None:
    """Where plots beside one another have the same rows, the first one names them."""
    for (left, _), (panel, axes) in pairwise(row):
        if isinstance(panel, Rows) and isinstance(left, Rows) and panel.rows == left.rows:
            axes.tick_params(axis="y", labelleft=False)


def _same_scale(drawn: Sequence[tuple[Panel, Any]]) -> None:
    groups: dict[tuple[str, str], list[Any]] = {}
    for panel, axes in drawn:
        if panel.scale is not None:
            groups.setdefault(panel.scale, []).append(axes)
    for (axis, _), group in groups.items():
        limits = [axes.get_xlim() if axis == "x" else axes.get_ylim() for axes in group]
        both = min(low for low, _ in limits), max(high for _, high in limits)
        for axes in group:
            axes.set_xlim(both) if axis == "x" else axes.set_ylim(both)


_SPREADS = {
    "band": "Bands: one standard deviation over {} repetitions.",
    "line": "Lines through dots: one standard deviation over {} repetitions.",
    "interval": "Intervals: 95 %, paired over {} repetitions; hollow where one touches zero.",
}


def _notes(panels: Sequence[Panel]) -> list[str]:
    """What stands in small print: grey lines by name, and what a spread is."""
    grey = list(dict.fromkeys(name for panel in panels for name in panel.unnamed))
    found = [f"Thin grey: {', '.join(grey)}."] if grey else []
    spreads: dict[str, int] = {}
    for panel in panels:
        kind, n = panel.spread_of
        spreads[kind] = max(n, spreads.get(kind, 0))
    found.append(" ".join(_SPREADS[kind].format(n) for kind, n in spreads.items() if n))
    return [line for line in found if line]


# The numbers of a picture as JSON: a mark tells what a list of numbers is.

_KINDS = (Curves, Lines, Dots, Differences, Heat, Histogram)
_PLAIN = {"values", "cells"}
_MARKS = {"@spread": Spread, "@comparison": Comparison, "@roles": Roles}


def _written(value: Any) -> Any:
    if isinstance(value, Panel):
        return {f.name: _written(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Curve):  # columns: many points take less room
        columns = [[getattr(s, name) for s in value.y] for name in ("mean", "sd", "n")]
        return {"@curve": [_written(part) for part in (value.x, *columns)]}
    for mark, kind in _MARKS.items():
        if isinstance(value, kind):
            parts = [getattr(value, f.name) for f in dataclasses.fields(kind)]
            return {mark: [_written(part) for part in parts]}
    if isinstance(value, dict):
        return {str(name): _written(part) for name, part in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return [_written(part) for part in value]


def _read(panel: dict[str, Any]) -> Panel:
    kinds: dict[str, Callable[..., Panel]] = {kind.__name__: kind for kind in _KINDS}
    given = {name: _value(part) for name, part in panel.items() if name != "kind"}
    for name in _PLAIN & given.keys():  # JSON has no word for NaN
        given[name] = np.array(given[name], dtype=float).tolist()
    return kinds[panel["kind"]](**given)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(part) for part in value)
    if not isinstance(value, dict):
        return value
    mark = next(iter(value), "")
    if mark == "@curve":
        x, *columns = (_value(part) for part in value[mark])
        return Curve(x, [_value({"@spread": of_point}) for of_point in zip(*columns, strict=True)])
    if mark in _MARKS:
        kind = _MARKS[mark]
        numbers = kind in (Spread, Comparison)
        return kind(*(math.nan if numbers and p is None else _value(p) for p in value[mark]))
    return {name: _value(part) for name, part in value.items()}
