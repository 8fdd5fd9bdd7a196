"""Tables 3 and 6: F³CRec without its client side, or without its server side.

The last columns are of validation, by which settings are chosen: a component is worth keeping where
it helps there. They mean most with seeds that no search has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.continual.settings import Method
from coterie.continual.tables.contrast import contrasts, noise_note, validation_contrasts
from coterie.continual.tables.published_analysis import DECREASES, TABLE_3, TABLE_6
from coterie.continual.tables.runs import RunResult
from coterie.continual.tables.study import METRIC_NAMES, NAMES, Study, averages, validations
from coterie.core.report import Report
from coterie.core.tables.paired import spread

CLIENT_SIDE: tuple[Method, ...] = ("f3crec", "f3crec-wo-cc", "f3crec-wo-arm", "ft")
SERVER_SIDE: tuple[Method, ...] = ("f3crec", "f3crec-wo-sc", "f3crec-wo-itm", "ft")


def ablation_table(study: Study, table: int) -> Report:
    """Reproduce Table 3 (client side) or 6 (server side)."""
    methods, published = (CLIENT_SIDE, TABLE_3) if table == 3 else (SERVER_SIDE, TABLE_6)
    results = study.methods(f"Table {table}", study.settings, methods)
    lines: dict[str, dict[str, Any]] = {m: {"method": NAMES[m]} for m in methods}
    rows: list[dict[str, Any]] = []
    notes = [
        "Mean ± standard deviation over seeds (the paper's number). Decrease is from F³CRec, in "
        "per cent; p is of a paired t-test over seeds, adjusted for three comparisons (Holm)."
    ]
    in_paper = study.settings.model.name == "fedmf" and study.settings.top_k == 20
    for column, metric in enumerate(("ndcg", "recall")):
        name = f"{metric}@{study.settings.top_k}"
        label = f"{METRIC_NAMES[metric]}@{study.settings.top_k}"
        whole = np.mean(averages(results["f3crec"], name))
        found = contrasts(results["f3crec"], {m: results[m] for m in methods[1:]}, name)
        for method in methods:
            values = averages(results[method], name)
            pair = published.get(study.data, {}).get(method) if in_paper else None
            paper = pair[column] if pair else None
            rows.append(study.row(method, f"test/average/{name}", values, paper))
            text = str(spread(values))
            lines[method][label] = text if paper is None else f"{text} ({paper:.4f})"
            if method == "f3crec":
                continue
            decrease = f"{100 * (np.mean(values) / whole - 1):+.1f}"
            printed = DECREASES[study.data][method][column] if paper is not None else None
            decrease += "" if printed is None else f" ({printed:+.1f})"
            lines[method][f"{label} decrease"] = decrease
            lines[method][f"{label}: F³CRec minus it"] = str(found[method])
        notes += [found[m].sentence("F³CRec", NAMES[m], label) for m in methods[1:]]
        notes.append(noise_note(found, label))
    _add_validation(lines, rows, notes, study, results)
    side = "client" if table == 3 else "server"
    title = f"Table {table}, {study.data}: ablations on the {side}, {len(study.seeds)} seeds"
    return Report(study.file(f"table{table}"), title, rows, list(lines.values()), notes)


def _add_validation(
    lines: dict[str, dict[str, Any]],
    rows: list[dict[str, Any]],
    notes: list[str],
    study: Study,
    results: Mapping[str, Sequence[RunResult]],
) -> None:
    """Add what validation says of the same runs."""
    label = f"validation N@{study.settings.top_k}"
    others = {m: r for m, r in results.items() if m != "f3crec"}
    found = validation_contrasts(results["f3crec"], others)
    for method, runs in results.items():
        rows.append(study.row(method, "valid/average", validations(runs), None))
        lines[method][label] = str(spread(validations(runs)))
        if method in found:
            lines[method][f"{label}: F³CRec minus it"] = str(found[method])
    notes += [c.sentence("F³CRec", NAMES[m], label) for m, c in found.items()]
