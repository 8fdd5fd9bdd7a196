"""Plots in the house style: what each has, and lines over rounds or over a hyper-parameter.

Rows of dots are in `coterie.core.tables.dots`, heat maps and histograms in
`coterie.core.tables.grids`. What comes from runs of several seeds is made in
`coterie.core.tables.means`; `coterie.core.tables.pictures` writes a figure of plots.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.palette import RIVALS, Surface, readable
from coterie.core.style import (
    Look,
    Roles,
    draw_line,
    few_ticks,
    looks,
    towards,
    words_above,
    write_beside,
)
from coterie.core.tables.paired import Spread

_MOST_TICKS = 8
_MOST_DOTS = 12

Bounds = tuple[float | None, float | None]
"""The least and the most that numbers can be; None where there is no such bound."""
SHARE: Bounds = (0.0, 1.0)


@dataclass(frozen=True)
class Panel(ABC):
    """One plot of a figure.

    Attributes:
        title: above the plot; "" where one plot stands alone.
        roles: which line or dot is whose, and which way the numbers are better.
        bounds: of the numbers; no spread is drawn beyond.
    """

    title: str = field(default="", kw_only=True)
    roles: Roles = field(default_factory=Roles, kw_only=True)
    bounds: Bounds = field(default=(None, None), kw_only=True)

    @property
    def least_width(self) -> float:
        """Inches that the plot needs."""
        return 3.6

    @property
    def height(self) -> float:
        """Inches."""
        return 3.0

    @property
    def scale(self) -> tuple[str, str] | None:
        """The axis and the name of what is compared: plots of the same have the same scale."""
        return None

    @property
    def unnamed(self) -> list[str]:
        """Lines that are grey and have no name in the plot."""
        return []

    @property
    def spread_of(self) -> tuple[str, int]:
        """How a spread is drawn, and of how many repetitions; 0 where there is none."""
        return "", 0

    @abstractmethod
    def draw(self, axes: Any, surface: Surface) -> None:
        """Draw the plot on axes of matplotlib."""


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
    """One plot of curves; a band is one standard deviation.

    The plot ends where what has a name does, and at twice the length of the own curve at most: one
    rival that takes much longer would squeeze all others.

    Attributes:
        x_label: what grows.
        y_label: what is shown.
        curves: name -> curve.
    """

    x_label: str
    y_label: str
    curves: Mapping[str, Curve]

    @property
    def scale(self) -> tuple[str, str] | None:
        """Of what is shown."""
        return "y", self.y_label

    @property
    def looks(self) -> dict[str, Look]:
        """Of each curve."""
        ends = {name: _last(curve.y) for name, curve in self.curves.items()}
        return looks(ends, self.roles)

    @property
    def unnamed(self) -> list[str]:
        """Those beyond the first five."""
        return [name for name, look in self.looks.items() if not look.named]

    @property
    def spread_of(self) -> tuple[str, int]:
        """A band over seeds."""
        found = self.looks
        numbers = [s for name, c in self.curves.items() if found[name].band for s in c.y]
        return "band", max((s.n for s in numbers if any(sds([s]))), default=0)

    def draw(self, axes: Any, surface: Surface) -> None:
        """Draw."""
        found, end = self.looks, self._end()
        few = all(len(curve.x) <= _MOST_DOTS for curve in self.curves.values())
        for name, whole in self.curves.items():
            look, curve = found[name], _until(whole, end)
            means = [s.mean for s in curve.y]
            dots = few and look.named and look.dashes == "-"
            draw_line(axes, curve.x, means, look, name, surface, dots)
            if look.band and any(sds(curve.y)):
                low, high = limits(curve.y, self.bounds)
                axes.fill_between(curve.x, low, high, color=look.colour, alpha=0.15, linewidth=0)
        few_ticks(axes.xaxis, whole=all(float(v).is_integer() for v in self._all_x()))
        few_ticks(axes.yaxis)
        axes.margins(x=0.02)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(towards(self.y_label, self.roles.better))
        words_above(axes, self.title, {}, surface)

    def _end(self) -> float:
        found = self.looks
        last = [c.x[-1] for name, c in self.curves.items() if len(c.x) and found[name].named]
        own = self.curves.get(self.roles.own)
        cut = 2 * own.x[-1] if own is not None and len(own.x) > 1 else math.inf
        return min(max(last, default=math.inf), cut)

    def _all_x(self) -> list[float]:
        return [value for curve in self.curves.values() for value in curve.x]


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
    y_label: str = ""
    log_y: bool = False

    @property
    def scale(self) -> tuple[str, str] | None:
        """Of what is shown."""
        return "y", self.y_label

    @property
    def _curves(self) -> Curves:
        drawn = {name: Curve(self.x, line) for name, line in self.lines.items()}
        about = {"title": self.title, "roles": self.roles, "bounds": self.bounds}
        return Curves(self.x_label, self.y_label, drawn, **about)  # type: ignore[arg-type]

    @property
    def unnamed(self) -> list[str]:
        """Those beyond the first five."""
        return self._curves.unnamed

    @property
    def spread_of(self) -> tuple[str, int]:
        """A band over seeds."""
        return self._curves.spread_of

    def draw(self, axes: Any, surface: Surface) -> None:
        """Draw."""
        from matplotlib.ticker import NullLocator

        if self.log:
            axes.set_xscale("log")
        if self.log_y:
            axes.set_yscale("log")
        x_axis, y_axis = axes.xaxis.get_major_locator(), axes.yaxis.get_major_locator()
        self._curves.draw(axes, surface)
        if self.log:
            axes.xaxis.set_major_locator(x_axis)
            if len(self.x) <= _MOST_TICKS:
                axes.set_xticks(self.x, [_number(value) for value in self.x])
            axes.xaxis.set_minor_locator(NullLocator())
        if self.log_y:
            axes.yaxis.set_major_locator(y_axis)
            axes.yaxis.set_minor_locator(NullLocator())
        if self.chosen is not None:
            axes.axvline(self.chosen, color=RIVALS, linestyle=":", linewidth=1.0, zorder=1)
            write_beside(axes, self.chosen, "in use", 1.0, readable(RIVALS, surface))


def _number(value: float) -> str:
    """Write a value at a tick.

    Example:
        >>> _number(5), _number(1_000_000), _number(0.001)
        ('5', '1,000,000', '0.001')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def sds(spreads: Iterable[Spread]) -> list[float]:
    """Standard deviations; 0 where there is none."""
    return [s.sd if s.n > 1 and math.isfinite(s.sd) else 0.0 for s in spreads]


def limits(spreads: Sequence[Spread], bounds: Bounds) -> tuple[Any, Any]:
    """One standard deviation below and above, never beyond a bound."""
    means, wide = np.array([s.mean for s in spreads]), np.array(sds(spreads))
    low, high = means - wide, means + wide
    return (
        low if bounds[0] is None else np.maximum(low, bounds[0]),
        high if bounds[1] is None else np.minimum(high, bounds[1]),
    )


def _until(curve: Curve, end: float) -> Curve:
    """A curve up to and with an x."""
    count = sum(x <= end for x in curve.x)
    return Curve(curve.x[:count], curve.y[:count])


def _last(spreads: Sequence[Spread]) -> float:
    known = [s.mean for s in spreads if math.isfinite(s.mean)]
    return known[-1] if known else math.nan
