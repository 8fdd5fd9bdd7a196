"""Table 3: Recall@10 of every client, and the imbalance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.tables.curves import bars
from coterie.core.tables.plots import Bars
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.llm.published import printed_wrong, table3
from coterie.llm.tables.contrast import comparison_notes
from coterie.llm.tables.runs import imbalances, inequality, of_client
from coterie.llm.tables.study import NAMES, Study

OF_CLIENTS = ("central", "fedavg", "pplr")
_IN_PAPER = "tiny-text"  # the paper's rows are BIGRec's

_CLIENT_NOTES = (
    "Recall@10 of every client on the test, mean ± standard deviation over seeds; every seed makes "
    "clusters of its own, numbered by size, the largest first. Imbalance is the median over seeds "
    "of (best - worst) / worst client; it is infinite where the worst finds nothing.",
)


def client_table(study: Study) -> Report:
    """Reproduce Table 3 for the study's data set."""
    sheet, panels = Sheet(study, *_CLIENT_NOTES), []
    for backbone, by_method in study.by_backbone("Table 3", OF_CLIENTS).items():
        for method, results in by_method.items():
            _add_clients(sheet, backbone, method, results)
        panels.append(_panel(backbone, by_method, study.settings.data.clients))
        sheet.notes += comparison_notes(backbone, by_method, ("fedavg", "central"))
    if printed_wrong(study.data, "central"):
        sheet.notes.append(
            "The paper prints an imbalance of 4.50 for BIGRec on MicroLens, which does not follow "
            "from its own clients: .0275 / .0031 - 1 = 7.87. It is left out."
        )
    return sheet.report("Table 3", "Recall@10 of every client", panels)


def _panel(backbone: str, by_method: Results, clients: int) -> Bars:
    """Bars of all methods for every client."""
    groups = {
        f"client {c + 1}": {NAMES[method]: of_client(part, c) for method, part in by_method.items()}
        for c in range(clients)
    }
    return bars(f"Recall@10, {backbone}", groups)


def _add_clients(
    sheet: Sheet[Study], backbone: str, method: str, results: Sequence[RunResult]
) -> None:
    line = sheet.line(backbone=backbone, method=NAMES[method])
    nothing = [None] * sheet.study.settings.data.clients
    papers, imbalance = _printed(sheet.study, backbone, method) or (nothing, None)
    for client, paper in enumerate(papers):
        label, more = f"client {client + 1}", {"backbone": backbone, "client": client}
        recall = of_client(results, client)
        sheet.cell(line, label, method, "test/recall@10", recall, paper, **more)
    unequal = imbalances(results)
    median = [float(np.median(unequal))]
    sheet.row(method, "test/imbalance_median", median, imbalance, backbone=backbone)
    line |= inequality(unequal, imbalance)


def _printed(
    study: Study, backbone: str, method: str
) -> tuple[Sequence[float | None], float | None] | None:
    if backbone != _IN_PAPER or study.settings.data.clients != 5:
        return None
    return table3(study.data, method)
