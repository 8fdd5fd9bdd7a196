"""Tables 3 and 6: F³CRec without its client side, or without its server side.

The last columns are of validation, by which settings are chosen: a component is worth keeping where
it helps there. They mean most with seeds that no search has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.continual.published import TABLES
from coterie.continual.settings import Method
from coterie.continual.tables.contrast import (
    Contrast,
    differences,
    noise_note,
    over_others,
    over_others_on_validation,
)
from coterie.continual.tables.runs import RunResult
from coterie.continual.tables.study import (
    BACKBONE_NAMES,
    METRIC_NAMES,
    NAMES,
    Study,
    averages,
    validations,
)
from coterie.core.tables.paired import Comparison, spread
from coterie.core.tables.plots import plot_differences
from coterie.core.tables.report import Report

CLIENT_SIDE: tuple[Method, ...] = ("f3crec", "f3crec-wo-cc", "f3crec-wo-arm", "ft")
SERVER_SIDE: tuple[Method, ...] = ("f3crec", "f3crec-wo-sc", "f3crec-wo-itm", "ft")


def client_side_table(study: Study) -> Report:
    """Reproduce Table 3, on all backbones or the one named."""
    return _table(study, 3)


def server_side_table(study: Study) -> Report:
    """Reproduce Table 6, on all backbones or the one named."""
    return _table(study, 6)


def _table(study: Study, table: int) -> Report:
    methods, published = CLIENT_SIDE if table == 3 else SERVER_SIDE, TABLES[f"table{table}"]
    rows: list[dict[str, Any]] = []
    view: list[dict[str, Any]] = []
    notes = [
        "Mean ± standard deviation over seeds (the paper's number, FedMF only). Decrease is from "
        "F³CRec, in per cent; p is of a paired t-test over seeds, adjusted for three comparisons "
        "(Holm)."
    ]
    drawn: dict[str, dict[str, Comparison]] = {}
    for backbone in study.backbones:
        title = f"Table {table}: {BACKBONE_NAMES[backbone]}"
        results = study.methods(title, study.tuned(backbone), methods)
        in_paper = backbone == "fedmf" and study.settings.top_k == 20
        paper = published.get(study.data, {}) if in_paper else {}
        part = _Part(study, backbone, results, paper)
        found = [part.tested(0, "ndcg"), part.tested(1, "recall"), part.validated()]
        rows += part.rows
        view += part.lines.values()
        notes += part.notes
        drawn[f"{BACKBONE_NAMES[backbone]}, test"] = differences(found[0])
        drawn[f"{BACKBONE_NAMES[backbone]}, validation"] = differences(found[2])
    side = "client" if table == 3 else "server"
    title = f"Table {table}, {study.data}: ablations on the {side}, {study.n_seeds}"
    file = study.file(f"table{table}")
    x_label = f"F³CRec minus it, NDCG@{study.settings.top_k}"
    image = plot_differences(drawn, x_label, title, study.folder / f"{file}.png")
    return Report(file, title, rows, view, notes, image)


class _Part:
    """The part of one backbone: rows for programs, lines and notes for people."""

    def __init__(
        self,
        study: Study,
        backbone: str,
        results: Mapping[str, Sequence[RunResult]],
        paper: Mapping[str, tuple[float, float]],
    ) -> None:
        self.study, self.backbone, self.results, self.paper = study, backbone, results, paper
        name = BACKBONE_NAMES[backbone]
        self.lines: dict[str, dict[str, Any]] = {
            method: {"backbone": name, "method": NAMES[method]} for method in results
        }
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def tested(self, column: int, metric: str) -> dict[str, Contrast]:
        """Add a metric of the test; ``column`` is its place in the paper's table."""
        name = f"{metric}@{self.study.settings.top_k}"
        label = f"{METRIC_NAMES[metric]}@{self.study.settings.top_k}"
        whole = np.mean(averages(self.results["f3crec"], name))
        for method, runs in self.results.items():
            values = averages(runs, name)
            printed = self.paper[method][column] if method in self.paper else None
            self._add(method, f"test/average/{name}", label, values, printed)
            if method != "f3crec":
                decrease = f"{100 * (np.mean(values) / whole - 1):+.1f}"
                if printed is not None:
                    there = TABLES["decreases"][self.study.data][method][column]
                    decrease += f" ({there:+.1f})"
                self.lines[method][f"{label} decrease"] = decrease
        return self._compared(over_others(self.results, name), label)

    def validated(self) -> dict[str, Contrast]:
        """Add what validation says of the same runs."""
        name = f"valid/average/ndcg@{self.study.settings.top_k}"
        label = f"validation N@{self.study.settings.top_k}"
        for method, runs in self.results.items():
            self._add(method, name, label, validations(runs), None)
        return self._compared(over_others_on_validation(self.results), label)

    def _add(
        self, method: str, metric: str, label: str, values: Sequence[float], paper: float | None
    ) -> None:
        row = self.study.row(method, metric, values, paper, backbone=self.backbone)
        self.rows.append(row)
        text = str(spread(values))
        self.lines[method][label] = text if paper is None else f"{text} ({paper:.4f})"

    def _compared(self, found: dict[str, Contrast], label: str) -> dict[str, Contrast]:
        label_here = f"{BACKBONE_NAMES[self.backbone]}, {label}"
        for method, contrast in found.items():
            self.lines[method][f"{label}: F³CRec minus it"] = str(contrast)
            self.notes.append(contrast.sentence("F³CRec", NAMES[method], label_here))
        self.notes.append(noise_note(found, label_here))
        return found
