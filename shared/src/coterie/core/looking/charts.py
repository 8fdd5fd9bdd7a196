"""Charts of a page: Vega-Lite specifications drawn as SVG, in colours that follow the page's.

They are drawn when the page is written, so it carries no library (vega, vega-lite and its embedding
are 0.9 MB) and runs no script for them; they print, scale and can be selected. A mark's numbers are
its ``<title>``, which browsers show under the pointer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from coterie.core.palette import LIGHT, OURS, RIVALS, SERIES

_WIDTH, _HEIGHT = 340, 210
_MOST_TICKS, _LARGE = 6, 10_000
_MOST_POINTS = 80  # of a line that has a mark and a title each
_COLOURS = {LIGHT.ink: "var(--ink)", LIGHT.faint: "var(--line)", LIGHT.ground: "var(--ground)"}
_MARK = re.compile(r'<path aria-label="([^"]*)"([^>]*?)(/>|></path>)')
_NOTHING = re.compile(r'<path d="(M0,0h0v0h0Z)?"[^>]*/>')
_ROLES = re.compile(r' (role|aria-roledescription|aria-hidden|aria-label)="[^"]*"')


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: for the legend.
        x: where it was measured, ``(n,)``.
        y: what was, ``(n,)``; what is not a number is left out.
        low: lower edge of a band, ``(n,)``; empty for none.
        high: upper edge.
        colour: None takes the next of the palette.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: str | None = None


@dataclass(frozen=True)
class Chart:
    """A picture with its words.

    Attributes:
        title: above it.
        about: what is to be seen, for who does not see it.
        svg: markup, safe to put into a page.
    """

    title: str
    about: str
    svg: str


def line_chart(
    title: str, lines: Sequence[Line], x: str, marks: Mapping[str, Sequence[int]] | None = None
) -> Chart | None:
    """Draw lines over whole numbers, as rounds are; None where there is no number.

    Args:
        title: of the chart, which says what goes up, and its unit.
        lines: the first one is the one that matters.
        x: name of the axis.
        marks: upright lines at places of the x axis, by what they say.
    """
    rows = [row for line in lines for row in _rows(line)]
    if not rows:
        return None
    places = [row["x"] for row in rows]
    across = _across(x, min(places), max(places))
    layers = _line_layers(rows, lines, across)
    middle = (min(places) + max(places)) / 2
    for name, spots in (marks or {}).items():
        rule = {"type": "rule", "strokeDash": [3, 3], "color": LIGHT.ink, "opacity": 0.6}
        text = {"type": "text", "y": -6, "color": LIGHT.ink}
        # Away from the numbers of the upright axis, which are left of the first place.
        right = bool(spots) and spots[-1] > middle
        text |= {"align": "right", "dx": 3} if right else {"align": "left", "dx": -3}
        for mark, more in ((rule, {}), (text, {"text": {"value": name}})):
            some = spots if mark is rule else spots[-1:]
            data = {"values": [{"x": at} for at in some]}
            layers.append({"data": data, "mark": mark, "encoding": {"x": across, **more}})
    return _drawn(title, _words(lines, x), {"data": {"values": rows}, "layer": layers})


def histogram(
    title: str, values: Sequence[float], x: str, split: float | None = None
) -> Chart | None:
    """Draw how numbers of clients are spread; None where there are none.

    Args:
        title: of the chart.
        values: one a client.
        x: what they are.
        split: values below it have the colour that warns.
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None
    colour: Any = {"value": RIVALS}
    if split is not None:
        colour = {"condition": {"test": f"datum.at < {split}", "value": OURS}, "value": RIVALS}
    bins = _binned(known, split)
    counted = {"values": _whole(0, max(one["clients"] for one in bins)), "format": "d"}
    encoding = {
        "x": {
            "field": "from",
            "type": "quantitative",
            "title": x,
            "axis": _axis(5),
            "scale": {"zero": False},
        },
        "x2": {"field": "to"},
        "y": {"field": "clients", "type": "quantitative", "title": "clients", "axis": counted},
        "y2": {"datum": 0},
        "color": colour,
    }
    spec = {
        "data": {"values": bins},
        "mark": {"type": "bar", "binSpacing": 1},
        "encoding": encoding,
    }
    about = f"{len(known)} clients, from {min(known):.4g} to {max(known):.4g}"
    return _drawn(title, about, spec)


def _binned(known: Sequence[float], split: float | None) -> list[dict[str, float]]:
    """Count values in bins of the same width; a bin does not reach over the split."""
    low, high = min(known), max(known)
    width = (high - low) / min(20, max(5, math.isqrt(len(known)))) or abs(high) / 10 or 1.0
    start = low if split is None else split - width * math.ceil((split - low) / width)
    counts: dict[int, int] = {}
    for value in known:
        at = math.floor((value - start) / width)
        at -= value == high and at > 0 and start + at * width >= high
        counts[at] = counts.get(at, 0) + 1
    return [
        {
            "from": start + at * width,
            "to": start + (at + 1) * width,
            "at": start + (at + 0.5) * width,
            "clients": count,
        }
        for at, count in sorted(counts.items())
    ]


def dots(title: str, rows: Sequence[tuple[str, float, float]], x: str) -> Chart | None:
    """Draw a number of each group, with its standard deviation; None where there is none.

    Args:
        title: of the chart.
        rows: name of a group, mean, standard deviation (NaN for none); the first one matters.
        x: what the numbers are.
    """
    values = [
        {"group": name, "mean": mean, "low": mean - (sd if sd == sd else 0.0), "high": mean + sd}
        if sd == sd
        else {"group": name, "mean": mean, "low": mean, "high": mean}
        for name, mean, sd in rows
        if math.isfinite(mean)
    ]
    if not values:
        return None
    first = values[0]["group"]
    by = {"field": "group", "type": "nominal", "sort": None, "title": None}
    colour = {
        "condition": {"test": f"datum.group === {json.dumps(first)}", "value": OURS},
        "value": RIVALS,
    }
    axis = {"title": x, "axis": _axis(5), "scale": {"zero": False}}
    layers = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "y": by,
                "x": {"field": "low", "type": "quantitative", **axis},
                "x2": {"field": "high"},
                "color": colour,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {
                "y": by,
                "x": {"field": "mean", "type": "quantitative", **axis},
                "color": colour,
            },
        },
    ]
    about = "; ".join(f"{row['group']} {row['mean']:.4g}" for row in values)
    spec = {"data": {"values": values}, "layer": layers, "height": 26 * len(values) + 20}
    return _drawn(title, about, spec)


def _rows(line: Line) -> list[dict[str, Any]]:
    band = zip(line.low, line.high, strict=True) if line.low else [(None, None)] * len(line.x)
    return [
        {"x": x, "y": y, "line": line.name, "low": low, "high": high}
        for x, y, (low, high) in zip(line.x, line.y, band, strict=True)
        if math.isfinite(y)
    ]


def _line_layers(rows: Sequence[Any], lines: Sequence[Line], across: Any) -> list[Any]:
    """The band, the line and its marks."""
    palette = [*SERIES, *[RIVALS] * len(lines)]
    range_ = [line.colour or palette[at] for at, line in enumerate(lines)]
    legend = {
        "orient": "bottom",
        "columns": 2,
        "labelLimit": 150,
        "symbolOpacity": 1,
        "symbolType": "stroke",
    }
    colour = {
        "field": "line",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [line.name for line in lines], "range": range_},
        "legend": legend if len(lines) > 1 else None,
    }
    largest = max(abs(row["y"]) for row in rows)
    axis = _axis(4) | ({"format": "~s"} if largest >= _LARGE else {})
    low, high = min(row["y"] for row in rows), max(row["y"] for row in rows)
    scale: dict[str, Any] = {"zero": False}
    if low == high and len(lines) == 1:  # else the one tick of what never changes is rounded to 0
        scale["domain"] = [low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2]
    up = {"field": "y", "type": "quantitative", "title": None, "axis": axis, "scale": scale}
    shared = {"x": across, "color": colour}
    layers: list[Any] = []
    if any(row["low"] is not None for row in rows):
        band = {"y": up | {"field": "low"}, "y2": {"field": "high"}}
        mark = {"type": "area", "opacity": 0.18, "aria": False}
        within = [{"filter": "isValid(datum.low)"}]
        layers.append({"transform": within, "mark": mark, "encoding": shared | band})
    mark = {"type": "line", "strokeWidth": 2, "aria": False}
    layers.append({"mark": mark, "encoding": shared | {"y": up}})
    if len(rows) <= _MOST_POINTS * len(lines):
        size = 40 if len(rows) < 12 * len(lines) else 12
        point = {"type": "point", "filled": True, "size": size, "opacity": 1}
        layers.append({"mark": point, "encoding": shared | {"y": up}})
    return layers


def _across(title: str, low: float, high: float) -> dict[str, Any]:
    """The axis of rounds, with ticks at whole ones."""
    axis = {"values": _whole(low, high), "format": "d"}
    scale = {"domain": [low, max(high, low + 1)]}
    return {"field": "x", "type": "quantitative", "title": title, "axis": axis, "scale": scale}


def _whole(low: float, high: float) -> list[int]:
    """Some whole numbers of a range, for ticks.

    Example:
        >>> _whole(1, 4), _whole(1, 200)
        ([1, 2, 3, 4], [1, 50, 100, 150, 200])
    """
    least = max(1.0, (high - low) / _MOST_TICKS)
    ten = 10 ** math.floor(math.log10(least))
    step = next(ten * nice for nice in (1, 2, 5, 10) if ten * nice >= least)
    ticks = [at for at in range(0, math.ceil(high) + 1, step) if at >= low]
    first = math.ceil(low)
    return [first, *ticks] if not ticks or ticks[0] - first > step / 2 else ticks


def _axis(ticks: int) -> dict[str, Any]:
    return {"tickCount": ticks}


def _words(lines: Sequence[Line], x: str) -> str:
    """Say where each line begins and ends."""
    said = []
    for line in lines:
        known = [(at, y) for at, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        if known:
            (a, first), (b, last) = known[0], known[-1]
            said.append(f"{line.name} from {first:.4g} at {x} {a:g} to {last:.4g} at {x} {b:g}")
    return "; ".join(said)


def _drawn(title: str, about: str, spec: Mapping[str, Any]) -> Chart:
    import vl_convert

    whole = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": _WIDTH,
        "height": _HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": None,
        "config": _CONFIG,
        **spec,
    }
    return Chart(title, about, _inline(vl_convert.vegalite_to_svg(whole), title, about))


def _inline(svg: str, title: str, about: str) -> str:
    """Make an SVG part of a page: its colours those of the page, one name, titles on marks."""
    svg = _MARK.sub(lambda m: f"<path{m[2]}><title>{m[1]}</title></path>", svg)
    svg = _ROLES.sub("", _NOTHING.sub("", svg))
    for colour, variable in _COLOURS.items():
        svg = svg.replace(f'"{colour}"', f'"{variable}"')
    # The name space that an SVG file needs is no address that is fetched, and a page needs none.
    svg = re.sub(r' (xmlns(:\w+)?|version|class)="[^"]*"', "", svg)
    label = escape(f"{title}: {about}", quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


_CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": LIGHT.ink,
        "titleColor": LIGHT.ink,
        "tickColor": LIGHT.faint,
        "domainColor": LIGHT.faint,
        "gridColor": LIGHT.faint,
        "gridOpacity": 0.5,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 160,
    },
    "axisX": {"grid": False},
    "legend": {"labelColor": LIGHT.ink, "labelFontSize": 11, "symbolStrokeWidth": 4},
    "text": {"fontSize": 11},
}
