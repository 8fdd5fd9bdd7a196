"""Figure 4: PPLR, each of its halves alone, and FedAvg; and how strong the halves are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.core.tables.figures import figure_report
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import Bars, Lines, Panel
from coterie.core.tables.report import Report
from coterie.llm.settings.run import Method
from coterie.llm.tables.contrast import comparison_notes, contrasts, verdict_note
from coterie.llm.tables.layout import finite_spread, summary
from coterie.llm.tables.mechanism import PARTS, extents, mechanism_notes, mechanism_rows
from coterie.llm.tables.runs import RunResult
from coterie.llm.tables.study import NAMES, Results, Study, column, imbalances

METHODS: tuple[Method, ...] = ("fedavg", "pplr-attention", "pplr-heating", "pplr")
_NOTE = (
    "Bars are means over seeds with one standard deviation; seeds with an infinite imbalance, "
    "where the worst client finds nothing, are not in the bars of imbalance but in the medians of "
    "the table. The last plot shows s, p and w of PPLR, means over clients and seeds."
)


def ablation_figure(study: Study) -> Report:
    """Draw Figure 4 for all backbones, or the one that is named."""
    rows: list[dict[str, Any]] = []
    view: list[dict[str, Any]] = []
    notes = [_NOTE]
    runs: dict[str, Results] = {}
    for backbone in study.backbones:
        results = study.methods(f"Figure 4: {backbone}", study.tuned(backbone), METHODS)
        runs[backbone] = results
        for method, part in results.items():
            rows += _rows(study, backbone, method, part)
            view.append({"backbone": backbone, "method": NAMES[method], **summary(part)})
        rows += mechanism_rows(study, backbone, results["pplr"])
        found = contrasts(results, METHODS[:-1])
        notes += [verdict_note(backbone, found), *comparison_notes(backbone, found)]
        notes += mechanism_notes(backbone, results["pplr"])
    recall, unequal = (
        {
            backbone: {NAMES[method]: of(part) for method, part in results.items()}
            for backbone, results in runs.items()
        }
        for of in (_recall, _imbalance)
    )
    panels: list[Panel] = [
        Bars("Recall@10", recall),
        Bars("imbalance", unequal),
        *(_mechanism(backbone, results["pplr"]) for backbone, results in runs.items()),
    ]
    title = f"Figure 4, {study.data}: ablations"
    return figure_report(study, "figure4", title, (rows, view), notes, panels)


def _recall(results: Sequence[RunResult]) -> Spread:
    return spread(column(results, "test/recall@10"))


def _imbalance(results: Sequence[RunResult]) -> Spread:
    return finite_spread(imbalances(results))


def _rows(
    study: Study, backbone: str, method: str, results: Sequence[RunResult]
) -> list[dict[str, Any]]:
    values = {
        "test/recall@10": column(results, "test/recall@10"),
        "valid/recall@10": column(results, "valid/recall@10"),
        "test/evenness": [result.evenness() for result in results],
        "test/imbalance_median": [float(np.median(imbalances(results)))],
    }
    return [study.row(method, n, part, None, backbone=backbone) for n, part in values.items()]


def _mechanism(backbone: str, results: Sequence[RunResult]) -> Lines:
    found = {label: extents(results, name) for name, label in PARTS.items()}
    lines = {
        label: [Spread(extent.mean, float("nan"), 1) for extent in line]
        for label, line in found.items()
    }
    rounds = range(1, 1 + max(map(len, lines.values())))
    return Lines(f"round, {backbone}", rounds, lines, y_label="s, p and w of PPLR")
