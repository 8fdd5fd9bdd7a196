"""Heat maps of two hyper-parameters, and histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.palette import BEST, OURS, RIVALS, Surface, contrast, mixed, readable
from coterie.core.style import SMALL, few_ticks, series, words_above, write_beside
from coterie.core.tables.plots import Panel


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
        noise: what seeds alone make of a cell, a standard deviation; colours range over six of it,
            so that noise does not look like structure.
    """

    label: str
    x_label: str
    x: Sequence[float]
    y_label: str
    y: Sequence[float]
    cells: Sequence[Sequence[float]]
    chosen: tuple[float, float] | None = None
    noise: float = 0.0

    @property
    def spread_of(self) -> tuple[str, int]:
        """None."""
        return "", 0

    def draw(self, axes: Any, surface: Surface) -> None:
        """Draw."""
        from matplotlib.colors import LinearSegmentedColormap, to_hex
        from matplotlib.patches import Rectangle

        ends = [mixed(surface.ground, BEST, share) for share in (0.06, 0.9)]
        colours = LinearSegmentedColormap.from_list("heat", ends)
        values = np.ma.masked_invalid(np.asarray(self.cells, dtype=float))
        low, high = self._range(values)
        axes.imshow(values, colours, origin="lower", aspect="auto", vmin=low, vmax=high)
        digits = _digits(values)
        for (row, column), value in np.ndenumerate(values):
            if values.mask is not np.ma.nomask and np.ma.getmaskarray(values)[row, column]:
                continue
            under = to_hex(colours((value - low) / (high - low)))
            word = max((surface.ink, surface.ground), key=lambda one: contrast(one, under))
            axes.text(
                column, row, f"{value:.{digits}f}", ha="center", va="center", color=word,
                fontsize=SMALL,
            )  # fmt: skip
        axes.set_xticks(range(len(self.x)), [f"{value:g}" for value in self.x])
        axes.set_yticks(range(len(self.y)), [f"{value:g}" for value in self.y])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        better = f" ({self.roles.better} is better)" if self.roles.better else ""
        words_above(axes, self.title or self.label + better, {}, surface)
        if self.chosen is not None and self.chosen[0] in self.x and self.chosen[1] in self.y:
            x, y = self.x.index(self.chosen[0]), self.y.index(self.chosen[1])
            corner = x - 0.5, y - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=OURS, linewidth=2.5))

    def _range(self, values: Any) -> tuple[float, float]:
        """What the colours range over: all values, and no less than noise or a tenth of them."""
        if not values.count():
            return 0.0, 1.0
        low, high = float(values.min()), float(values.max())
        least = max(6 * self.noise, 0.1 * max(abs(low), abs(high))) or 1.0
        short = max(0.0, least - (high - low)) / 2
        return low - short, high + short


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

    def draw(self, axes: Any, surface: Surface) -> None:
        """Draw."""
        values = [value for value in self.values if math.isfinite(value)]
        bins = min(30, max(5, round(len(values) ** 0.5)))
        axes.hist(values, bins=bins, color=RIVALS, edgecolor=surface.ground, linewidth=0.5)
        few_ticks(axes.xaxis)
        few_ticks(axes.yaxis, whole=True)
        axes.margins(y=0.05 + 0.12 * len(self.marks))  # room for their names
        for place, (label, look) in enumerate(series(list(self.marks)).items()):
            value = self.marks[label]
            axes.axvline(value, color=look.colour, linestyle="--", linewidth=1.5)
            write_beside(axes, value, label, 1.0 - 0.09 * place, readable(look.colour, surface))
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        words_above(axes, self.title, {}, surface)


def _digits(values: Any) -> int:
    """Decimals that show three digits of the largest value."""
    largest = float(np.abs(values).max()) if values.count() else 0.0
    return max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0
