"""The sections of a page that puts several runs beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from coterie.core.looking.charts import Chart, Line, dots, histogram, line_chart
from coterie.core.looking.clients import gains
from coterie.core.looking.comparison import Comparison, Group, letters
from coterie.core.looking.measures import curves, in_words
from coterie.core.looking.sections import Section, Sheet
from coterie.core.looking.single import state, unit
from coterie.core.looking.tables import sheets
from coterie.core.palette import SERIES
from coterie.core.registry.keys import Panel
from coterie.core.tables.paired import spread

_MOST_CHARTS = 6
_MOST_LINES = len(SERIES)


def sections(found: Comparison) -> list[Section]:
    """What a page says of several runs."""
    laid = {sheet.name: sheet for sheet in sheets(found)}
    titles = {
        "runs": "What is compared",
        "metrics": "Results",
        "tests": "Is a difference more than noise?",
        "settings": "Settings that differ",
        "leaves": "What leaves the clients",
        "costs": "Cost",
    }
    parts = {
        name: Section(name, title, sheets=[laid[name]])
        for name, title in titles.items()
        if name in laid
    }
    if "metrics" in parts:
        parts["metrics"] = replace(parts["metrics"], charts=_numbers(found))
    if "tests" not in parts:
        why = [*found.unfair.values()] or ["There are no two groups with seeds in common."]
        parts["tests"] = Section("tests", titles["tests"], words=[f"{line}." for line in why])
    warned = Section("warnings", "Warnings", words=found.warnings or ["None."])
    order = [
        parts["runs"],
        warned,
        parts.get("metrics"),
        parts["tests"],
        _curves(found),
        _losers(found),
        parts.get("leaves"),
        parts.get("costs"),
        parts.get("settings"),
        _each(found),
    ]
    return [section for section in order if section is not None]


def _numbers(found: Comparison) -> list[Chart]:
    charts = []
    for metric in found.metrics[:_MOST_CHARTS]:
        rows = []
        for group in found.groups:
            one = found.spread(group, metric)
            rows.append((group.label, one.mean, one.sd))
        measure = in_words(metric)
        charts.append(dots(f"{measure}, mean ± sd over seeds", rows, measure))
    return [chart for chart in charts if chart is not None]


def _curves(found: Comparison) -> Section | None:
    panels: dict[str, Panel] = {}
    for group in found.groups:
        for panel in curves(group.first):
            panels.setdefault(panel.keys[0], panel)
    charts = []
    for name, panel in list(panels.items())[:_MOST_CHARTS]:
        # A group has its colour on every chart, those too that lack another group.
        lines = [
            replace(_band(group, name), colour=colour)
            for group, colour in zip(found.groups, SERIES, strict=False)
        ]
        known = [line for line in lines if any(y == y for y in line.y)]
        what = f": {panel.name_of(name)}" if len(panel.keys) > 1 else ""
        title = panel.title + what + unit(found.runs[0], panel)
        charts.append(line_chart(title, known, "round"))
    drawn = [chart for chart in charts if chart is not None]
    words = ["Bands: one standard deviation over seeds to each side of the mean."]
    if len(found.groups) > _MOST_LINES:
        words.append(f"Drawn are the first {_MOST_LINES} of {len(found.groups)}.")
    return Section("curves", "Curves", words, charts=drawn) if drawn else None


def _band(group: Group, name: str) -> Line:
    """Mean over the seeds of a group, round by round, as far as all of them are."""
    rows = [run.history.get(name, []) for run in group.runs]
    rows = [row for row in rows if any(value == value for value in row)]
    length = min(map(len, rows), default=0)
    spreads = [spread([row[at] for row in rows]) for at in range(length)]
    y = [one.mean for one in spreads]
    x = list(map(float, range(1, length + 1)))
    if len(rows) < 2:
        return Line(group.label, x, y)
    sd = [0.0 if math.isnan(one.sd) else one.sd for one in spreads]
    low = [mean - one for mean, one in zip(y, sd, strict=True)]
    high = [mean + one for mean, one in zip(y, sd, strict=True)]
    return Line(group.label, x, y, low, high)


def _losers(found: Comparison) -> Section | None:
    """Who is better off with the first group than with each other one, over common seeds."""
    own, names = found.groups[0], letters(found.groups)
    rows, charts = [], []
    for group in found.groups[1:]:
        if group.label in found.unfair:
            continue
        pairs = [(own.of(seed), group.of(seed)) for seed in own.seeds]
        each = [gains(a, b) for a, b in pairs if a is not None and b is not None]
        known = [one for one in each if one is not None]
        if not known:
            continue
        gained = [float(value) for one in known for value in one.gains]
        losing = sum(value < 0 for value in gained)
        rows.append(
            {
                "": f"{names[own.label]} - {names[group.label]}",
                "against": group.label,
                "measure": in_words(known[0].name),
                "clients × seeds": f"{len(gained):,}",
                "lose": f"{losing:,} ({losing / len(gained):.0%})",
                "mean gain": f"{sum(gained) / len(gained):+.4f}",
                "largest loss": f"{min(0.0, *gained):.4f}",
            }
        )
        title = f"Gain of clients: {own.label} over {group.label}"
        charts.append(histogram(title, gained, f"gain in {in_words(known[0].name)}", 0.0))
    if not rows:
        return None
    words = ["A gain is how much better a client fares in the first runs than in the others."]
    drawn = [chart for chart in charts if chart is not None][:_MOST_CHARTS]
    sheet = Sheet("losing", f"Clients that lose with {own.label}", rows)
    return Section("clients", "Who loses", words, charts=drawn, sheets=[sheet])


def _each(found: Comparison) -> Section:
    """Every run with its state and notes."""
    names = letters(found.groups)
    rows = [
        {
            "run": run.name,
            "group": names[group.label],
            "seed": str(run.seed),
            "state": state(run),
            "notes": _joined(run.summary.get("notes", [])),
        }
        for group in found.groups
        for run in group.runs
    ]
    return Section("each", "Each run", sheets=[Sheet("each-run", "Every run that was given", rows)])


def _joined(lines: Sequence[str]) -> str:
    return "; ".join(lines) or "-"
