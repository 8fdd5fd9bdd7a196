"""The tables of a comparison, as rows that a terminal, a markdown file and a page show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.filesize import decimal

from coterie.core.looking.comparison import Comparison, Group, Tested, letters, shown
from coterie.core.looking.costs import cost, crossed
from coterie.core.looking.measures import in_words
from coterie.core.looking.sections import Sheet
from coterie.core.tables.paired import p_text

_FEW = 3  # groups that have a column each; more have a row each
_MOST_FIELDS = 12


def sheets(found: Comparison) -> list[Sheet]:
    """Lay a comparison out; a table of nothing is left out."""
    laid = [
        _runs(found),
        _settings(found),
        _metrics(found),
        _tests(found),
        _leaving(found),
        _costs(found),
    ]
    return [sheet for sheet in laid if sheet.rows]


def document(found: Comparison) -> dict[str, Any]:
    """The same for programs: every number of every seed."""
    return {
        "paper": found.groups[0].first.config["paper"],
        "groups": [_group(found, group) for group in found.groups],
        "settings": found.differing,
        "tests": [row for one in found.tested for row in _test_rows(one, found)],
        "warnings": found.warnings,
    }


def _group(found: Comparison, group: Group) -> dict[str, Any]:
    return {
        "label": group.label,
        "runs": [str(run.path) for run in group.runs],
        "seeds": group.seeds,
        "states": [run.state for run in group.runs],
        "metrics": {name: group.values(name, group.seeds) for name in found.metrics},
        "reference": group.first.reference,
        "cost": [vars(cost(run)) for run in group.runs],
        "leaves": [
            {"step": one.step, "field": one.field, "messages": one.messages, "bytes": one.bytes}
            for one in crossed(group.first.ledger, [])
            if one.direction == "up"
        ],
    }


def _test_rows(one: Tested, found: Comparison) -> list[dict[str, Any]]:
    own = found.groups[0].label
    return [
        {
            "metric": one.metric,
            "first": own,
            "second": label,
            "difference": contrast.found.difference,
            "low": contrast.found.low,
            "high": contrast.found.high,
            "pairs": contrast.found.n,
            "p": contrast.found.p,
            "holm": contrast.p,
            "verdict": verdict(one, label),
        }
        for label, contrast in one.contrasts.items()
    ]


def verdict(one: Tested, label: str) -> str:
    """Say what a test found; which way is better is not always known."""
    contrast = one.contrasts[label]
    if one.higher is not None or contrast.verdict in ("within noise", "not tested"):
        return contrast.verdict
    return "higher" if contrast.found.difference > 0 else "lower"


def _runs(found: Comparison) -> Sheet:
    names = letters(found.groups)
    rows = [
        {
            "": names[group.label],
            "what": group.label,
            "seeds": ", ".join(map(str, group.seeds)),
            "data": group.first.data,
            "rounds": "–".join(
                str(n) for n in sorted({run.rounds for run in group.runs})[:: max(1, _ends(group))]
            ),
            "runs": group.first.name + (f" and {len(group.runs) - 1} more" * (len(group.runs) > 1)),
        }
        for group in found.groups
    ]
    return Sheet("runs", f"Runs of {found.groups[0].first.paper.written}", rows)


def _ends(group: Group) -> int:
    """The step that leaves the first and the last of the different numbers of rounds."""
    return len({run.rounds for run in group.runs}) - 1


def _settings(found: Comparison) -> Sheet:
    names = letters(found.groups)
    rows = [
        {"setting": key, **dict(zip(names.values(), map(shown, values), strict=True))}
        for key, values in found.differing.items()
    ]
    return Sheet("settings", "Settings that differ", rows)


def _metrics(found: Comparison) -> Sheet:
    names = letters(found.groups)
    title = "Final numbers, mean ± sd over seeds"
    if len(found.groups) > _FEW:
        rows = [
            {"": names[group.label], "what": group.label, "seeds": _n(group)}
            | {in_words(name): _text(found, group, name) for name in found.metrics}
            for group in found.groups
        ]
        return Sheet("metrics", title, rows if found.metrics else [])
    rows = []
    for name in found.metrics:
        row = {"metric": in_words(name)}
        row |= {names[group.label]: _text(found, group, name) for group in found.groups}
        paper = found.paper_number(name)
        rows.append(row | ({"paper of A": f"{paper:.4f}"} if paper is not None else {}))
    return Sheet("metrics", title, rows)


def _n(group: Group) -> str:
    return str(sum(run.finished for run in group.runs))


def _text(found: Comparison, group: Group, metric: str) -> str:
    spread = found.spread(group, metric)
    return str(spread) if spread.n else "-"


def _tests(found: Comparison) -> Sheet:
    names = letters(found.groups)
    own = names[found.groups[0].label]
    rows = []
    for one in found.tested:
        for label, contrast in one.contrasts.items():
            f = contrast.found
            tested = f.n > 1
            rows.append(
                {
                    "metric": in_words(one.metric),
                    "difference": f"{own} - {names[label]}",
                    "mean": f"{f.difference:+.4f}",
                    "95 %": f"{f.low:+.4f} to {f.high:+.4f}" if tested else "-",
                    "Holm": p_text(contrast.p).removeprefix("= ") if tested else "-",
                    f"{own} is": verdict(one, label),
                    "pairs": str(f.n),
                    "p": p_text(f.p).removeprefix("= ") if tested else "-",
                }
            )
    notes = []
    if rows:
        notes = [
            "Paired t-tests over common seeds; Holm: p adjusted for the number of groups, within "
            "a measure. Over several measures nothing is adjusted: choose one before you look."
        ]
    return Sheet("tests", f"{own} against the others", rows, notes, first=(f"{own} is", "mean"))


def _leaving(found: Comparison) -> Sheet:
    names = letters(found.groups)
    counted: dict[str, dict[str, int]] = {}
    for group in found.groups:
        run = next((run for run in group.runs if run.ledger), None)
        for one in crossed(run.ledger if run else [], []):
            if one.direction == "up":
                entry = counted.setdefault(f"{one.field} ({one.step})", {})
                entry[names[group.label]] = one.bytes
    order = sorted(counted, key=lambda field: -max(counted[field].values()))
    rows = [
        {"field (step)": field}
        | {
            name: decimal(counted[field][name]) if name in counted[field] else "-"
            for name in names.values()
        }
        for field in order
    ]
    notes = []
    if len(rows) > _MOST_FIELDS:
        notes = [f"{len(rows) - _MOST_FIELDS} smaller fields: --json has them."]
    title = "What leaves the clients in a run"
    return Sheet("leaves", title, rows[:_MOST_FIELDS], notes)


def _costs(found: Comparison) -> Sheet:
    names = letters(found.groups)
    of = {names[group.label]: [cost(run) for run in group.runs] for group in found.groups}
    facts = {
        "rounds": lambda one: one.rounds,
        "clients in a round": lambda one: one.clients,
        "sent by clients (MB)": lambda one: one.up / 1e6,
        "sent to clients (MB)": lambda one: one.down / 1e6,
        "sent by a client in a round (kB)": lambda one: one.up_each / 1e3,
        "local steps": lambda one: one.steps,
        "seconds": lambda one: one.seconds,
    }
    rows = []
    for title, fact in facts.items():
        means = {name: _mean([float(fact(one)) for one in costs]) for name, costs in of.items()}
        if any(value is not None for value in means.values()):
            rows.append({"cost": title} | {n: _short(value) for n, value in means.items()})
    return Sheet("costs", "Cost, mean over seeds", rows)


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"
