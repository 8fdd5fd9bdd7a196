"""Table 3: Recall@10 of every client, and the imbalance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.core.tables.figures import figure_report
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Bars, Panel
from coterie.core.tables.report import Report
from coterie.llm.published import printed_wrong, table3
from coterie.llm.settings.run import Method
from coterie.llm.tables.contrast import comparison_notes, contrasts, verdict_note
from coterie.llm.tables.runs import RunResult
from coterie.llm.tables.study import NAMES, Results, Study, imbalances, of_client

METHODS: tuple[Method, ...] = ("central", "fedavg", "pplr")
_IN_PAPER = "tiny-text"  # the paper's rows are BIGRec's

_NOTES = (
    "Recall@10 of every client on the test, mean ± standard deviation over seeds; every seed makes "
    "clusters of its own, numbered by size, the largest first. Imbalance is the median over seeds "
    "of (best - worst) / worst client; it is infinite where the worst finds nothing.",
)


def client_table(study: Study) -> Report:
    """Reproduce Table 3 for the study's data set."""
    rows: list[dict[str, Any]] = []
    view: list[dict[str, Any]] = []
    notes: list[str] = list(_NOTES)
    panels: list[Panel] = []
    for backbone in study.backbones:
        by_method = study.methods(f"Table 3: {backbone}", study.tuned(backbone), METHODS)
        for method, results in by_method.items():
            rows += _rows(study, backbone, method, results)
            view.append(_line(study, backbone, method, results))
        panels.append(_panel(backbone, by_method, study.settings.data.clients))
        found = contrasts(by_method, ("fedavg", "central"))
        notes += [verdict_note(backbone, found), *comparison_notes(backbone, found)]
    if printed_wrong(study.data, "central"):
        notes.append(
            "The paper prints an imbalance of 4.50 for BIGRec on MicroLens, which does not follow "
            "from its own clients: .0275 / .0031 - 1 = 7.87. It is left out."
        )
    title = f"Table 3, {study.data}: Recall@10 of every client"
    return figure_report(study, "table3", title, (rows, view), notes, panels)


def _panel(backbone: str, by_method: Results, clients: int) -> Bars:
    """Bars of all methods for every client."""
    groups = {
        f"client {client + 1}": {
            NAMES[method]: spread(of_client(results, client))
            for method, results in by_method.items()
        }
        for client in range(clients)
    }
    return Bars(f"Recall@10, {backbone}", groups)


def _rows(
    study: Study, backbone: str, method: str, results: Sequence[RunResult]
) -> list[dict[str, Any]]:
    printed, unequal = _printed(study, backbone, method), float(np.median(imbalances(results)))
    values, imbalance = printed or ((), None)
    papers = dict(enumerate(values))
    rows = [
        study.row(
            method,
            "test/recall@10",
            of_client(results, client),
            papers.get(client),
            backbone=backbone,
            client=client,
        )
        for client in range(study.settings.data.clients)
    ]
    return [
        *rows,
        study.row(method, "test/imbalance_median", [unequal], imbalance, backbone=backbone),
    ]


def _line(study: Study, backbone: str, method: str, results: Sequence[RunResult]) -> dict[str, Any]:
    line: dict[str, Any] = {"backbone": backbone, "method": NAMES[method]}
    for row in _rows(study, backbone, method, results):
        if "client" not in row:
            text = f"{row['mean']:.2f}"
            known = row["paper"] is not None and row["paper"] == row["paper"]
            line["imbalance"] = f"{text} ({row['paper']:.2f})" if known else text
            continue
        text = str(spread(of_client(results, row["client"])))
        paper = row["paper"]
        line[f"client {row['client'] + 1}"] = text if paper is None else f"{text} ({paper:.4f})"
    unequal = imbalances(results)
    line["infinite"] = f"{int(np.isinf(unequal).sum())} of {len(unequal)}"
    return line


def _printed(study: Study, backbone: str, method: str) -> tuple[list[float], float] | None:
    if backbone != _IN_PAPER or study.settings.data.clients != 5:
        return None
    return table3(study.data, method)
