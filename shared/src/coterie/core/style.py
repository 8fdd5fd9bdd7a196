"""The house style of pictures: one colour for the method shown, its name at the end of its line.

Every picture is drawn within `styled`, which leaves matplotlib's settings as they were. No other
module chooses a colour, a width or a legend.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.labels import name_end
from coterie.core.palette import BEST, OURS, RIVALS, SERIES, Surface, mixed, readable

WIDTH = 8.9
"""Inches: 640 points, the width of a page of text."""
TEXT, SMALL = 10.0, 9.0
"""Points: of titles and names, and of the numbers at ticks, as the picture is shown."""
DPI = 192
"""Two pixels for each of a usual screen."""
MOST_LABELLED = 5
_MOST_BANDS = 3
_LETTERS = 108  # of a line of small print


Better = Literal["higher", "lower", ""]
"""Which way numbers are better; "" where neither is."""


def better_of(higher: bool) -> Better:
    """Name the way."""
    return "higher" if higher else "lower"


@dataclass(frozen=True)
class Roles:
    """Who is who among the lines of a picture.

    Attributes:
        own: name of the line that the picture is about; "" where all are equals.
        baselines: names of trivial baselines, drawn dotted.
        better: which way the numbers are better.
    """

    own: str = ""
    baselines: Sequence[str] = field(default_factory=tuple)
    better: Better = ""


@dataclass(frozen=True)
class Look:
    """How one line looks.

    Attributes:
        colour: of the line.
        width: in points.
        dashes: style of the line, as matplotlib names it.
        named: whether its name stands at its end.
        band: whether its spread is drawn.
        marker: of a point.
    """

    colour: str
    width: float = 1.5
    dashes: str = "-"
    named: bool = True
    band: bool = False
    marker: str = "o"


def looks(ends: Mapping[str, float], roles: Roles) -> dict[str, Look]:
    """Choose how lines look.

    The own line is strong, the best of its rivals blue, the other ones thin and grey; without an
    own line all have colours of their own. No more than five are named.

    Args:
        ends: name -> the number that a line ends at; NaN where there is none.
        roles: of the lines.

    Example:
        >>> found = looks({"PAGE": 0.9, "FedAvg": 0.8, "local": 0.5}, Roles("PAGE", ("local",)))
        >>> [(name, look.width, look.dashes) for name, look in found.items()]
        [('PAGE', 2.0, '-'), ('FedAvg', 1.0, '-'), ('local', 1.0, ':')]
    """
    trivial = {name: Look(RIVALS, 1.0, ":") for name in ends if name in roles.baselines}
    others = [name for name in ends if name not in trivial and name != roles.own]
    room = MOST_LABELLED - len(trivial) - (roles.own in ends)
    if roles.own not in ends:
        found = {
            name: Look(SERIES[place], band=len(others) <= _MOST_BANDS)
            if place < min(len(SERIES), room)
            else Look(RIVALS, 0.8, named=False)
            for place, name in enumerate(others)
        }
    else:
        ranked = _ranked({name: ends[name] for name in others}, roles.better)
        found = {
            name: Look(RIVALS, 1.0, named=True) if place < room else Look(RIVALS, 0.8, named=False)
            for place, name in enumerate(ranked)
        }
        if roles.better and len(ranked) > 1 and room > 0 and not math.isnan(ends[ranked[0]]):
            found[ranked[0]] = Look(BEST, 1.5, band=True)
        found[roles.own] = Look(OURS, 2.0, band=True)
    return {name: found[name] if name in found else trivial[name] for name in ends}


def series(names: Sequence[str], own: str = "") -> dict[str, Look]:
    """Choose colours, and then markers, of points that are told apart by them; the own is first."""
    order = [name for name in names if name == own] + [name for name in names if name != own]
    found = {
        name: Look(SERIES[place % len(SERIES)], marker="os^Dv"[place // len(SERIES) % 5])
        for place, name in enumerate(order)
    }
    return {name: found[name] for name in names}


@contextmanager
def styled(surface: Surface) -> Iterator[None]:
    """Draw in the house style whatever the user's settings are, and leave these as they were."""
    import matplotlib
    import matplotlib.style

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings(surface))  # type: ignore[arg-type]
        yield


def _settings(surface: Surface) -> dict[str, Any]:
    return {
        "figure.facecolor": surface.ground,
        "figure.dpi": 96,
        "axes.facecolor": surface.ground,
        "savefig.facecolor": surface.ground,
        "text.color": surface.ink,
        "axes.labelcolor": surface.ink,
        "axes.titlecolor": surface.ink,
        "axes.edgecolor": surface.faint,
        "xtick.color": surface.faint,
        "ytick.color": surface.faint,
        "xtick.labelcolor": surface.ink,
        "ytick.labelcolor": surface.ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": TEXT,
        "axes.labelsize": SMALL,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "font.size": SMALL,
        "axes.formatter.useoffset": False,
        "svg.hashsalt": "coterie",  # the same picture is the same file
    }


def towards(label: str, better: Better) -> str:
    """Say on an axis which way is better.

    Example:
        >>> towards("RMSE", "lower"), towards("AUC", "higher"), towards("η", "")
        ('← better    RMSE', 'AUC    better →', 'η')
    """
    return {"higher": f"{label}    better →", "lower": f"← better    {label}", "": label}[better]


def few_ticks(axis: Any, whole: bool = False, most: int = 5) -> None:
    """Put few numbers on an axis, whole ones for what is counted."""
    from matplotlib.ticker import MaxNLocator

    steps = [1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]
    least = 1 if whole else 2  # of a single round there is one
    axis.set_major_locator(MaxNLocator(most, integer=whole, steps=steps, min_n_ticks=least))


def in_thousands(axis: Any, unit: str = "") -> None:
    """Write large numbers of an axis as 10 k or 2 MB."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(unit=unit))


def mark_point(axes: Any, at: tuple[float, float], surface: Surface) -> None:
    """Mark a point of a line by a ring."""
    axes.plot(*at, "o", markersize=7, markerfacecolor="none", color=surface.ink, zorder=5)


def wrap(text: str, letters: int, lines: int | None = None) -> str:
    """Break a text into lines of so many letters, and cut it after some."""
    return "\n".join(textwrap.wrap(text, letters, max_lines=lines, placeholder=" …"))


def in_rows(count: int, most: int) -> list[int]:
    """Say how many plots stand in each row, about as many in all of them.

    Args:
        count: of plots.
        most: of them that have room in a row.

    Example:
        >>> in_rows(5, 3), in_rows(4, 3)
        ([3, 2], [2, 2])
    """
    rows = math.ceil(count / most)
    least, more = divmod(count, max(rows, 1))
    return [least + (row < more) for row in range(rows)]


def grid(figure: Any, counts: Sequence[int], heights: Sequence[float]) -> list[Any]:
    """Add axes in rows that are all full.

    Args:
        figure: without any.
        counts: axes in each row.
        heights: of the rows.

    Returns:
        The axes, row by row.
    """
    parts = math.lcm(*counts)
    places = figure.add_gridspec(len(counts), parts, height_ratios=heights)
    return [
        figure.add_subplot(places[row, at * (parts // count) : (at + 1) * (parts // count)])
        for row, count in enumerate(counts)
        for at in range(count)
    ]


def heading(figure: Any, text: str) -> None:
    """Write the title of a figure; a $ in it is one of a name, not of a formula."""
    folded = wrap(text, 92)
    figure.suptitle(
        folded, x=0.008, ha="left", fontsize=TEXT + 1, fontweight="bold", parse_math=False
    )


def small_print(figure: Any, lines: Sequence[str]) -> None:
    """Write lines below a figure."""
    folded = "\n".join(wrap(line, _LETTERS) for line in lines)
    if folded:
        figure.supxlabel(folded, x=0.008, ha="left", fontsize=SMALL, parse_math=False)


def draw_line(
    axes: Any,
    x: Sequence[float],
    y: Sequence[float],
    look: Look,
    name: str,
    surface: Surface,
    dots: bool = False,
    letters: int = 20,
) -> None:
    """Draw a line with its name at its end, if it is to be named.

    Args:
        axes: of the plot.
        x: ascending.
        y: numbers; NaN where there is none.
        look: of the line.
        name: of the line.
        surface: that is drawn on.
        dots: whether each point is marked.
        letters: of a line of its name.
    """
    known = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    axes.plot(
        x,
        y,
        look.dashes,
        color=look.colour,
        linewidth=look.width,
        marker="o" if dots or len(known) == 1 else None,
        markersize=3.5,
        label=name,
        zorder=2 + look.width,
    )
    if look.named and known:
        colours = readable(look.colour, surface), mixed(look.colour, surface.ground, 0.6)
        name_end(axes, wrap(name, letters), known[-1], *colours, size=SMALL, bold=look.width >= 2)


def write_beside(axes: Any, x: float, text: str, height: float, colour: str) -> None:
    """Write to the right of an upright line at x, at a height from 0 to 1."""
    axes.annotate(
        text, (x, height), xycoords=axes.get_xaxis_transform(), xytext=(3, 0),
        textcoords="offset points", va="top", ha="left", fontsize=SMALL, color=colour,
    )  # fmt: skip


def words_above(axes: Any, title: str, found: Mapping[str, Look], surface: Surface) -> None:
    """Write a title above a plot, and below it the names of its series in their colours."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker

    def words(text: str, colour: str, **more: Any) -> Any:
        style = {"color": colour, "fontsize": SMALL, "parse_math": False, **more}
        return TextArea(text, textprops=style)

    marks = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼"}
    named = [
        words(f"{marks[look.marker]} {name}", readable(look.colour, surface))
        for name, look in found.items()
    ]
    rows: list[Any] = [words(title, surface.ink, fontsize=TEXT)] if title else []
    rows += [
        HPacker(children=named[start : start + 3], pad=0, sep=8)
        for start in range(0, len(named), 3)
    ]
    if rows:
        box = VPacker(children=rows, pad=0, sep=3, align="left")
        axes.add_artist(
            AnchoredOffsetbox(
                "lower left",
                child=box,
                frameon=False,
                pad=0,
                borderpad=0.3,
                bbox_to_anchor=(0.0, 1.0),
                bbox_transform=axes.transAxes,
            )
        )


def _ranked(ends: Mapping[str, float], better: Better) -> list[str]:
    """Names, the best first; those without a number last."""
    if not better:
        return list(ends)
    sign = -1.0 if better == "higher" else 1.0
    return sorted(ends, key=lambda name: math.inf if math.isnan(ends[name]) else sign * ends[name])
