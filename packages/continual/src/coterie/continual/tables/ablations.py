"""Tables 3 and 6: F³CRec without its client side, or without its server side.

The last columns are of validation, by which settings are chosen: a component is worth keeping where
it helps there. They mean most with seeds that no search has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.continual.settings import Method
from coterie.continual.tables.contrast import (
    Contrast,
    differences,
    noise_note,
    over_others,
    over_others_on_validation,
)
from coterie.continual.tables.published_analysis import DECREASES, TABLE_3, TABLE_6
from coterie.continual.tables.runs import RunResult
from coterie.continual.tables.study import (
    BACKBONE_NAMES,
    METRIC_NAMES,
    NAMES,
    Study,
    averages,
    validations,
)
from coterie.core.report import Report
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import plot_differences

CLIENT_SIDE: tuple[Method, ...] = ("f3crec", "f3crec-wo-cc", "f3crec-wo-arm", "ft")
SERVER_SIDE: tuple[Method, ...] = ("f3crec", "f3crec-wo-sc", "f3crec-wo-itm", "ft")


def ablation_table(study: Study, table: int) -> Report:
    """Reproduce Table 3 (client side) or 6 (server side)."""
    methods, published = (CLIENT_SIDE, TABLE_3) if table == 3 else (SERVER_SIDE, TABLE_6)
    results = study.methods(f"Table {table}", study.settings, methods)
    in_paper = study.settings.model.name == "fedmf" and study.settings.top_k == 20
    paper = published.get(study.data, {}) if in_paper else {}
    lines: dict[str, dict[str, Any]] = {m: {"method": NAMES[m]} for m in methods}
    rows: list[dict[str, Any]] = []
    notes = [
        "Mean ± standard deviation over seeds (the paper's number). Decrease is from F³CRec, in "
        "per cent; p is of a paired t-test over seeds, adjusted for three comparisons (Holm)."
    ]
    for column, metric in enumerate(("ndcg", "recall")):
        name = f"{metric}@{study.settings.top_k}"
        label = f"{METRIC_NAMES[metric]}@{study.settings.top_k}"
        whole = np.mean(averages(results["f3crec"], name))
        for method in methods:
            values = averages(results[method], name)
            printed = paper[method][column] if method in paper else None
            rows.append(study.row(method, f"test/average/{name}", values, printed))
            text = str(spread(values))
            lines[method][label] = text if printed is None else f"{text} ({printed:.4f})"
            if method != "f3crec":
                decrease = f"{100 * (np.mean(values) / whole - 1):+.1f}"
                if printed is not None:
                    decrease += f" ({DECREASES[study.data][method][column]:+.1f})"
                lines[method][f"{label} decrease"] = decrease
        found = over_others(results, name)
        _compare(lines, notes, found, label)
        notes.append(noise_note(found, label))
    _add_validation(lines, rows, notes, study, results)
    side = "client" if table == 3 else "server"
    place = f"{study.data}, {BACKBONE_NAMES[study.settings.model.name]}, {len(study.seeds)} seeds"
    title, file = f"Table {table}: ablations on the {side}, {place}", study.file(f"table{table}")
    image = _draw(results, f"ndcg@{study.settings.top_k}", place, study.folder / f"{file}.png")
    return Report(file, title, rows, list(lines.values()), notes, image)


def _compare(
    lines: dict[str, dict[str, Any]], notes: list[str], found: Mapping[str, Contrast], label: str
) -> None:
    for method, contrast in found.items():
        lines[method][f"{label}: F³CRec minus it"] = str(contrast)
        notes.append(contrast.sentence("F³CRec", NAMES[method], label))


def _add_validation(
    lines: dict[str, dict[str, Any]],
    rows: list[dict[str, Any]],
    notes: list[str],
    study: Study,
    results: Mapping[str, Sequence[RunResult]],
) -> None:
    """Add what validation says of the same runs."""
    label = f"validation N@{study.settings.top_k}"
    name = f"valid/average/ndcg@{study.settings.top_k}"
    for method, runs in results.items():
        rows.append(study.row(method, name, validations(runs), None))
        lines[method][label] = str(spread(validations(runs)))
    _compare(lines, notes, over_others_on_validation(results), label)


def _draw(results: Mapping[str, Sequence[RunResult]], metric: str, title: str, path: Path) -> Path:
    """Draw what F³CRec has over each ablation and FT, on the test and on validation."""
    series = {
        "test": differences(over_others(results, metric)),
        "validation": differences(over_others_on_validation(results)),
    }
    return plot_differences(series, f"F³CRec minus it, {metric.upper()}", title, path)
