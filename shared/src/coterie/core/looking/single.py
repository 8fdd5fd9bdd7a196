"""The sections of a page about one run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal

from coterie.core.errors import UserError
from coterie.core.looking.boundary import crossing
from coterie.core.looking.charts import Chart, Line, histogram, line_chart
from coterie.core.looking.clients import NAMED, alone, gains, local_method, per_client
from coterie.core.looking.comparison import shown
from coterie.core.looking.costs import cost, is_linear, projection
from coterie.core.looking.facts import RunFacts
from coterie.core.looking.measures import curves, in_words, results, rounds_of_tests
from coterie.core.looking.privacy import declared, units
from coterie.core.looking.sections import Section, Sheet, sheet_of, text
from coterie.core.metrics.monitor import VALIDATION
from coterie.core.registry.keys import KEYS, Panel, documented
from coterie.core.registry.papers import load

_MOST_CHARTS = 9
_ROUND = "round"


def sections(run: RunFacts, others: Sequence[RunFacts] = ()) -> list[Section]:
    """What a page says of a run.

    Args:
        run: what it is of.
        others: other runs, of which one may have trained the same clients alone.
    """
    found = [
        what(run),
        _results(run),
        _curves(run),
        spread(run, others),
        crossing(run),
        noise(run),
        costs(run),
        *own(run),
        notes(run),
        _more(run),
        settings(run),
    ]
    return [section for section in found if section is not None]


def what(run: RunFacts) -> Section:
    """What was run, on what, and by what."""
    about, paper = run.about, run.paper
    facts = {
        "paper": f"{paper.title} ({paper.reference})",
        "method": f"{run.method}, {run.config.get('reading')} reading",
        "data": str(about.get("source") or run.data),
        "digest of the data": _short(run.digest("data")),
        "digest of the clients' parts": _short(run.digest("clients")),
        "seed": str(run.seed),
        "state": state(run),
        "rounds": f"{run.rounds} done, at most {run.config.get('rounds')} in a block of data",
        "chosen by": in_words(run.monitor) if run.monitor else "nothing",
        "started": str(about.get("started", "-")),
        "machine": f"{about.get('machine', '-')}, {about.get('device', '-')}",
        "commit": _short_commit(str(about.get("commit") or "-")),
        "versions": ", ".join(f"{name} {one}" for name, one in _versions(run).items()),
        "folder": run.name,
    }
    if not about:
        facts = {k: v for k, v in facts.items() if k not in ("started", "machine", "commit")}
    rows = [{name: text(value) for name, value in row.items()} for row in about.get("blocks", [])]
    sheets = [Sheet("sizes", "Sizes of the data", rows)] if rows else []
    return Section("what", "What was run", facts=facts, sheets=sheets, words=_left_out(run))


def state(run: RunFacts) -> str:
    """The state of a run in words."""
    if run.finished:
        return "finished"
    words = "is being trained" if run.state == "training" else "stands still before its end"
    return f"{words}, {run.rounds} rounds are done"


def _left_out(run: RunFacts) -> list[str]:
    lines = run.summary.get("left_out") or run.about.get("left_out") or []
    return [f"Rows {line}." for line in lines]


def _versions(run: RunFacts) -> dict[str, str]:
    return dict(run.summary.get("versions") or run.about.get("versions") or {})


def _short(digest: str | None) -> str:
    return "not written down" if digest is None else digest[:16]


def _short_commit(commit: str) -> str:
    """Enough of it to find it; + says that files were changed."""
    return commit[:12] + "+" * (len(commit) > 12 and commit.endswith("+"))


def _results(run: RunFacts) -> Section:
    if not run.finished:
        again = shlex.join(["coterie", "train", run.paper.name, "--run.name", run.name, "--resume"])
        return Section(
            "results",
            "Results",
            ["The run did not come to its end, so nothing was tested yet. To go on:"],
            code=[] if run.state == "training" else [again],
        )
    found = results(run)
    rules = list(dict.fromkeys(rule for one in found for rule in one.baselines))
    rows = []
    for one in found:
        row = {"measure": in_words(one.name), "this run": text(one.ours)}
        if run.reference:
            row["paper"] = text(one.paper)
        row |= {rule: text(one.baselines.get(rule)) for rule in rules}
        row["better is"] = {True: "more", False: "less", None: "-"}[one.higher]
        row["key"] = one.name
        rows.append(row)
    words = []
    if run.reference:
        words.append(
            "The paper's numbers are those that it prints for this method and data; rounds, split "
            "and sizes may differ, see the settings."
        )
    if not rules:
        words.append("No rule without training, as popularity, was measured in this run.")
    sheets = [Sheet("numbers", "Final numbers, on the test", rows)] if rows else []
    return Section("results", "Results", words, sheets=sheets)


def _more(run: RunFacts) -> Section | None:
    """What else was measured at the end."""
    said = {one.name for one in results(run)}
    rows = [
        {"measure": name, "this run": text(value)}
        for name, value in run.metrics.items()
        if name not in said
    ]
    if not rows:
        return None
    sheet = Sheet("all-numbers", "Everything else that was measured at the end", rows)
    return Section("more", "All numbers", sheets=[sheet], folded=True)


def _curves(run: RunFacts) -> Section | None:
    charts = []
    for panel in curves(run)[:_MOST_CHARTS]:
        x = run.history.get(_ROUND, [])
        lines = [Line(panel.name_of(key), x, run.history[key]) for key in panel.keys]
        title = panel.title + unit(run, panel)
        charts.append(line_chart(title, lines, _ROUND, _marks(run, panel.keys)))
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return None
    return Section("curves", "Curves", charts=drawn)


def unit(run: RunFacts, panel: Panel) -> str:
    """The unit of a chart, as it stands behind a title that does not say it."""
    known = documented(panel.keys[0], (*run.paper.keys, *KEYS))
    said = known is None or known.unit == "1" or known.unit in panel.title.lower().split()
    return "" if known is None or said else f" ({known.unit})"


def _marks(run: RunFacts, names: Sequence[str]) -> dict[str, list[int]]:
    """The rounds that were tested, on charts of validation."""
    on_it = any(name.startswith(VALIDATION) for name in names)
    return {"tested": rounds_of_tests(run)} if on_it and run.finished else {}


def spread(run: RunFacts, others: Sequence[RunFacts] = ()) -> Section | None:
    """How clients fare, and who loses by federation."""
    found = per_client(run)
    if not found:
        return None
    first = found[0]
    quartiles = _quantiles(first.values)
    facts = {
        "measure": in_words(first.name),
        "clients": f"{first.values.size:,}",
        "mean": text(float(first.values.mean())),
        "middle half": f"{text(quartiles[0])} to {text(quartiles[2])}",
        "worst tenth, mean": text(first.worst_tenth),
    }
    measure = in_words(first.name)
    chart = histogram(f"Clients by {measure}", first.values.tolist(), measure)
    sheets = []
    if first.values.size <= NAMED and run.clients:
        rows = [{name: text(value) for name, value in row.items()} for row in run.clients]
        sheets = [Sheet("each", "Each client", rows)]
    words, code, more = _who_loses(run, others)
    charts = [one for one in (chart, *more) if one is not None]
    return Section("clients", "Clients", words, facts, charts, sheets, code)


def _quantiles(values: object) -> list[float]:
    import numpy as np

    return [float(value) for value in np.quantile(values, [0.25, 0.5, 0.75])]  # type: ignore[call-overload]


def _who_loses(
    run: RunFacts, others: Sequence[RunFacts]
) -> tuple[list[str], list[str], list[Chart | None]]:
    method = local_method(run)
    if method is None:
        return (["This paper has no method that trains each client alone to compare with."], [], [])
    if run.method == method:
        return (["In this run each client was trained alone."], [], [])
    local = alone(others, run)
    if local is None:
        command = ["coterie", "train", run.paper.name, "--config", str(run.path / "config.yaml")]
        command += ["--method", method]
        if run.config.get("run.name"):
            command += ["--run.name", f"{run.name}-{method}"]
        words = "Who loses by federation is seen beside a run that trains each client alone:"
        then = f"coterie report {shlex.quote(str(run.path))} RUN"
        return ([words], [shlex.join(command), f"{then}  # RUN: the folder of that run"], [])
    found = gains(run, local)
    if found is None:
        return (["The run of each client alone measured no client of this one."], [], [])
    share = found.losing / found.gains.size
    words = (
        f"Against each client alone ({local.name}), {found.losing} of {found.gains.size} clients "
        f"({share:.0%}) lose by federation in {in_words(found.name)}; the mean gain is "
        f"{found.gains.mean():+.4f}, the largest loss {min(0.0, float(found.gains.min())):.4f}."
    )
    title = f"Gain of clients over training alone, {in_words(found.name)}"
    return ([words], [], [histogram(title, found.gains.tolist(), "gain", 0.0)])


def noise(run: RunFacts) -> Section:
    """The guarantee, where noise was added, and what it covers."""
    kind = str(run.config.get("privacy.noise", "none"))
    epsilon = run.last("privacy/epsilon")
    if kind == "none":
        words = "No noise was added: nothing is guaranteed about what uploads tell of the data."
        return Section("epsilon", "Differential privacy", [words])
    facts = {
        "ε spent": "unknown" if math.isnan(epsilon) else text(epsilon),
        "noise": kind,
        **{
            key.removeprefix("privacy."): shown(value)
            for key, value in run.config.items()
            if key.startswith("privacy.") and key != "privacy.noise"
        },
    }
    line = line_chart(
        "ε spent",
        [Line("ε", run.history.get(_ROUND, []), run.history.get("privacy/epsilon", []))],
        _ROUND,
    )
    charts = [line] if line is not None and run.rounds > 1 else []
    return Section("epsilon", "Differential privacy", [units()], facts, charts)


def costs(run: RunFacts) -> Section:
    """What the run took, and what it would with more clients."""
    found = cost(run)
    facts = {
        "rounds": f"{found.rounds:,}",
        "clients in a round": text(found.clients),
        "sent by clients": _size(found.up),
        "sent to clients": _size(found.down),
        "sent by a client in a round": _size(found.up_each),
        "sent to a client in a round": _size(found.down_each),
        "gradient steps": "-" if found.steps != found.steps else f"{found.steps:,.0f}",
        "time of the rounds": f"{found.seconds:,.1f} s",
    }
    section = Section("cost", "Cost", facts=facts)
    try:
        linear = is_linear(declared(run))
    except UserError:
        linear = False
    if not linear:
        words = [
            "Clients send to each other here, by the server: bytes grow faster than the number of "
            "clients, and are not projected."
        ]
        return Section("cost", "Cost", words, facts)
    rows = [
        {
            "clients in a round": f"{one.clients:,}",
            "sent by them in a round": _size(one.up),
            "sent to them in a round": _size(one.down),
            "both, in all rounds": _size(one.run),
        }
        for one in projection(found)
    ]
    if not rows:
        return section
    words = [
        "The projection is linear: bytes of a client in a round times the clients that take part. "
        f"It assumes the {found.rounds} rounds of this run, the same model and number of items, "
        "and clients with as much data. Time is not projected: here all clients shared one machine."
    ]
    sheet = Sheet("projection", "Traffic with more clients", rows)
    return Section("cost", "Cost", words, facts, sheets=[sheet])


def _size(size: float) -> str:
    return decimal(round(size)) if math.isfinite(size) else "-"


def own(run: RunFacts) -> list[Section]:
    """What the paper itself has to say, of files in the folder."""
    if run.paper.looking is None:
        return []
    reports = load(run.paper.looking)(Path(run.path))
    if not reports:
        return []
    sheets = [sheet_of(report) for report in reports]
    return [Section("own", f"What {run.paper.written} measures", sheets=sheets)]


def notes(run: RunFacts) -> Section:
    """What one should know beside the numbers."""
    found = [*run.summary.get("notes", [])]
    if not run.finished:
        found.insert(0, f"The run {state(run)}.")
    refused = run.total("fed/refused")
    if refused > 0:
        found.append(
            f"{refused:,.0f} answers of clients were refused over {run.rounds} rounds: they had "
            "another form, numbers that are not finite, or were out of bounds."
        )
    if not run.about:
        found.append("The run is of an older version: data digest, machine and commit are unknown.")
    return Section("notes", "Warnings and notes", found or ["None."])


def settings(run: RunFacts) -> Section:
    """Every setting."""
    hidden = ("paper", "data.root", "run.out")
    rows = [
        {"setting": key, "value": shown(value)}
        for key, value in run.config.items()
        if key not in hidden
    ]
    return Section("settings", "Settings", sheets=[Sheet("all", "All settings", rows)], folded=True)
