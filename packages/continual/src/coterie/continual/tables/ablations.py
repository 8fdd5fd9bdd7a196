"""Tables 3 and 6: F³CRec without its client side, or without its server side.

The last columns are of validation, by which settings are chosen: a component is worth keeping where
it helps there. They mean most with seeds that no search has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.continual.published import METRICS, TABLES
from coterie.continual.tables.contrast import (
    OWN,
    differences,
    in_short,
    noise_note,
    over_users,
    sentence,
)
from coterie.continual.tables.runs import PROTOCOLS
from coterie.continual.tables.study import (
    BACKBONE_NAMES,
    CONSUMED,
    NAMES,
    Study,
    averages,
    label_of,
    validations,
)
from coterie.core.tables.contrast import Contrast, contrasts
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results

CLIENT_SIDE = ("f3crec", "f3crec-wo-cc", "f3crec-wo-arm", "ft")
SERVER_SIDE = ("f3crec", "f3crec-wo-sc", "f3crec-wo-itm", "ft")


def client_side_table(study: Study) -> Report:
    """Reproduce Table 3, on all backbones or the one named."""
    return _table(study, "Table 3", "client", CLIENT_SIDE)


def server_side_table(study: Study) -> Report:
    """Reproduce Table 6, on all backbones or the one named."""
    return _table(study, "Table 6", "server", SERVER_SIDE)


def _table(study: Study, table: str, side: str, methods: tuple[str, ...]) -> Report:
    published = TABLES[table.lower().replace(" ", "")].get(study.data, {})
    sheet = Sheet(
        study,
        "Mean ± standard deviation over seeds (the paper's number, FedMF only). Decrease is from "
        "F³CRec, in per cent; p is of a paired t-test over seeds, adjusted for three comparisons "
        "(Holm).",
        CONSUMED,
    )
    drawn: dict[str, Mapping[str, Contrast]] = {}
    for backbone, results in study.by_backbone(table, methods).items():
        in_paper = backbone == "fedmf" and study.settings.top_k == 20
        found = _add(sheet, backbone, results, published if in_paper else {})
        drawn[f"{BACKBONE_NAMES[backbone]}, test"] = found[f"ndcg@{study.settings.top_k}"]
        drawn[f"{BACKBONE_NAMES[backbone]}, validation"] = found["validation"]
    panel = differences(drawn, f"NDCG@{study.settings.top_k}")
    return sheet.report(table, f"ablations on the {side}", [panel])


def _add(
    sheet: Sheet[Study], backbone: str, results: Results, published: Mapping[str, Any]
) -> dict[str, Mapping[str, Contrast]]:
    """Add the part of one backbone: the metrics of the test, and what validation says."""
    top_k, name = sheet.study.settings.top_k, BACKBONE_NAMES[backbone]
    lines = {method: sheet.line(backbone=name, method=NAMES[method]) for method in results}
    compared: dict[str, Mapping[str, Contrast]] = {}
    columns = [f"{metric}@{top_k}{protocol}" for protocol in PROTOCOLS for metric in METRICS]
    for place, metric in enumerate((*columns, "validation")):
        tested = metric if metric in columns else None
        if tested:
            label, key = label_of(tested), f"test/average/{tested}"
            values = {method: averages(runs, tested) for method, runs in results.items()}
        else:
            label, key = f"validation N@{top_k}", f"valid/average/ndcg@{top_k}"
            values = {
                method: validations(runs, f"ndcg@{top_k}") for method, runs in results.items()
            }
        for method, numbers in values.items():
            printed = published.get(method, ())
            paper = printed[place] if tested and place < len(printed) else None
            sheet.cell(lines[method], label, method, key, numbers, paper, backbone=backbone)
            if tested and method != OWN:
                decrease = f"{100 * (np.mean(numbers) / np.mean(values[OWN]) - 1):+.1f}"
                if paper is not None:
                    less = TABLES["decreases"][sheet.study.data][method][place]
                    decrease += f" ({less:+.1f})"
                lines[method][f"{label} decrease"] = decrease
        compared[metric] = contrasts(values, OWN)
        for method, contrast in compared[metric].items():
            lines[method][f"{label}: F³CRec minus it"] = in_short(contrast)
            users = over_users(results, method, tested) if tested else None
            sheet.notes.append(sentence(contrast, f"{name}, {label}", users))
        sheet.notes.append(noise_note(compared[metric], f"{name}, {label}"))
    return compared
