"""Plots of rows: dots with their spread, and differences with their intervals."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.palette import BEST, OURS, RIVALS, Surface
from coterie.core.style import Look, Roles, few_ticks, series, words_above
from coterie.core.tables.paired import Comparison, Spread
from coterie.core.tables.plots import Panel, limits, sds

_BETTER = {"higher": "better →", "lower": "← better"}


class Rows(Panel):
    """One plot of rows with names."""

    @property
    def least_width(self) -> float:
        """Names of rows take some."""
        return 2.9

    @property
    @abstractmethod
    def rows(self) -> list[str]:
        """What the rows are of, from top to bottom."""


@dataclass(frozen=True)
class Dots(Rows):
    """One plot of groups of dots in rows, with one standard deviation.

    A single group has a row for each name; of several groups each is a row, and the names are told
    apart by colours.

    Attributes:
        x_label: what the dots are.
        groups: group -> name of the dot -> where it is.
    """

    x_label: str
    groups: Mapping[str, Mapping[str, Spread]]

    @property
    def names(self) -> list[str]:
        """Of the dots."""
        return list(dict.fromkeys(name for group in self.groups.values() for name in group))

    @property
    def rows(self) -> list[str]:
        """What the rows are of, from top to bottom."""
        return self.names if len(self.groups) == 1 else list(self.groups)

    @property
    def height(self) -> float:
        """Of all rows."""
        in_a_row = 1 if len(self.groups) == 1 else len(self.names)
        return _height_of(len(self.rows), in_a_row)

    @property
    def scale(self) -> tuple[str, str] | None:
        """Of what is shown."""
        return "x", self.x_label

    @property
    def spread_of(self) -> tuple[str, int]:
        """A line through the dot."""
        spreads = [s for group in self.groups.values() for s in group.values()]
        return "line", max((s.n for s in spreads if any(sds([s]))), default=0)

    def draw(self, axes: Any, surface: Surface) -> None:
        """Draw."""
        several = len(self.groups) > 1
        found = series(self.names, self.roles.own) if several else _rows(self.names, self.roles)
        for row, group in enumerate(self.groups.values()):
            for place, name in enumerate(self.names):
                if name not in group:
                    continue
                y = row + _beside_middle(place, len(self.names)) if several else place
                one, look = group[name], found[name]
                ends = [float(end[0]) for end in limits([one], self.bounds)]
                _dot(axes, one.mean, ends if any(sds([one])) else None, y, look, surface, True)
        _name_rows(axes, self.rows, surface)
        few_ticks(axes.xaxis)
        if axes.get_xlim()[0] < 0 < axes.get_xlim()[1] and self.bounds[0] is None:
            axes.axvline(0, color=surface.ink, linewidth=0.8, zorder=1)
        _name_values(axes, self.x_label, self.roles.better)
        title = self.title or ("" if several else next(iter(self.groups), ""))
        words_above(axes, title, found if several and len(found) > 1 else {}, surface)


@dataclass(frozen=True)
class Differences(Rows):
    """One plot of differences with 95 % intervals; what touches zero may be nothing, and is hollow.

    Attributes:
        x_label: what is subtracted from what.
        series: name -> what is compared with, from top to bottom -> the difference.
    """

    x_label: str
    series: Mapping[str, Mapping[str, Comparison]]

    @property
    def rows(self) -> list[str]:
        """What is compared with, from top to bottom."""
        return list(dict.fromkeys(name for group in self.series.values() for name in group))

    @property
    def height(self) -> float:
        """Of all rows."""
        return _height_of(len(self.rows), len(self.series))

    @property
    def scale(self) -> tuple[str, str] | None:
        """Of what is shown."""
        return "x", self.x_label

    @property
    def spread_of(self) -> tuple[str, int]:
        """An interval."""
        pairs = [one.n for group in self.series.values() for one in group.values()]
        return "interval", max((n for n in pairs if n > 1), default=0)

    def draw(self, axes: Any, surface: Surface) -> None:
        """Draw."""
        axes.axvline(0, color=surface.ink, linewidth=0.8, zorder=1)
        several = len(self.series) > 1
        colours = series(list(self.series), self.roles.own)
        for place, (label, group) in enumerate(self.series.items()):
            for name, found in group.items():
                if not math.isfinite(found.difference):
                    continue
                y = self.rows.index(name) + _beside_middle(place, len(self.series))
                ends = [found.low, found.high] if found.n > 1 else None
                sure = ends is not None and not ends[0] <= 0 <= ends[1]
                look = colours[label] if several else Look(self._colour(found, sure))
                _dot(axes, found.difference, ends, y, look, surface, sure)
        _name_rows(axes, self.rows, surface)
        few_ticks(axes.xaxis, most=4)
        _name_values(axes, self.x_label, self.roles.better)
        title = self.title or ("" if several else next(iter(self.series), ""))
        words_above(axes, title, colours if several else {}, surface)

    def _colour(self, found: Comparison, sure: bool) -> str:
        """Vermilion where the own one is surely better, blue where it is worse, else grey."""
        if not sure:
            return RIVALS
        return OURS if (found.difference > 0) == (self.roles.better != "lower") else BEST


def _rows(names: Sequence[str], roles: Roles) -> dict[str, Look]:
    """Of dots whose names stand beside them: the own one is strong."""
    if roles.own not in names:
        return {name: Look(BEST) for name in names}
    return {name: Look(OURS if name == roles.own else RIVALS) for name in names}


def _dot(
    axes: Any, x: float, ends: Sequence[float] | None, y: float, look: Look, surface: Surface,
    full: bool,
) -> None:  # fmt: skip
    """Draw a dot, and a line between two ends through it."""
    if ends is not None:
        axes.plot(ends, [y, y], color=look.colour, linewidth=1.5, solid_capstyle="butt")
    axes.plot(
        [x],
        [y],
        look.marker,
        markersize=5.5,
        color=look.colour,
        markerfacecolor=look.colour if full else surface.ground,
        zorder=3,
    )


def _name_values(axes: Any, label: str, better: str) -> None:
    """Name the axis, and below it which way is better: plots stand beside one another.

    From the right: a long name has room below the names of the rows.
    """
    text = f"{label}\n{_BETTER[better]}" if better else label
    axes.set_xlabel(text, loc="right", multialignment="right")


def _height_of(rows: int, in_a_row: int) -> float:
    return max(1.7, 1.1 + 0.14 * rows * (in_a_row + 1))


def _beside_middle(place: int, places: int) -> float:
    """Where in a row the dot of a series is: rows are 1 apart, its dots share 0.7 of that."""
    return 0.7 / places * (place - (places - 1) / 2)


def _name_rows(axes: Any, rows: Sequence[str], surface: Surface) -> None:
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=surface.faint, linewidth=0.5)
    axes.set_axisbelow(True)
