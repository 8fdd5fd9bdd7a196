"""Figure 4: PPLR, each of its halves alone, and FedAvg; and how strong the halves are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.core.tables.curves import bars
from coterie.core.tables.paired import Spread
from coterie.core.tables.plots import Lines
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Sheet
from coterie.llm.tables.contrast import comparison_notes
from coterie.llm.tables.mechanism import PARTS, add_mechanism, extents
from coterie.llm.tables.runs import evenness, imbalances, summary
from coterie.llm.tables.study import NAMES, Study

HALVES = ("fedavg", "pplr-attention", "pplr-heating", "pplr")
_HALVES_NOTE = (
    "Bars are means over seeds with one standard deviation; seeds with an infinite imbalance, "
    "where the worst client finds nothing, are not in the bars of imbalance but in the medians of "
    "the table. The last plot shows s, p and w of PPLR, means over clients and seeds."
)


def ablation_figure(study: Study) -> Report:
    """Draw Figure 4 for all backbones, or the one that is named."""
    sheet, runs = Sheet(study, _HALVES_NOTE), study.by_backbone("Figure 4", HALVES)
    for backbone, results in runs.items():
        for method, part in results.items():
            sheet.line(backbone=backbone, method=NAMES[method], **summary(part))
            for name, values in {
                "test/recall@10": column(part, "test/recall@10"),
                "valid/recall@10": column(part, "valid/recall@10"),
                "test/evenness": evenness(part),
                "test/imbalance_median": [float(np.nanmedian(imbalances(part)))],
            }.items():
                sheet.row(method, name, values, backbone=backbone)
        sheet.notes += comparison_notes(backbone, results, HALVES[:-1])
        add_mechanism(sheet, backbone, results["pplr"])
    drawn: dict[str, Callable[[Sequence[RunResult]], list[float]]] = {
        "Recall@10": lambda part: column(part, "test/recall@10"),
        "imbalance": lambda part: [value for value in imbalances(part) if np.isfinite(value)],
    }
    panels = [
        bars(label, {b: {NAMES[m]: of(part) for m, part in by.items()} for b, by in runs.items()})
        for label, of in drawn.items()
    ]
    lines = [_mechanism(backbone, results["pplr"]) for backbone, results in runs.items()]
    return sheet.report("Figure 4", "ablations", [*panels, *lines])


def _mechanism(backbone: str, results: Sequence[RunResult]) -> Lines:
    found = {label: extents(results, name) for name, label in PARTS.items()}
    lines = {
        label: [Spread(extent.mean, float("nan"), 1) for extent in line]
        for label, line in found.items()
    }
    rounds = range(1, 1 + max(map(len, lines.values())))
    return Lines(f"round, {backbone}", rounds, lines, y_label="s, p and w of PPLR")
