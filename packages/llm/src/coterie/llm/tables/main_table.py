"""Table 1: overall performance on one data set, with and without language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.core.tables.paired import spread
from coterie.core.tables.report import Report
from coterie.llm.published import BACKBONES as PAPER_BACKBONES
from coterie.llm.published import COLUMNS, table1
from coterie.llm.settings.run import Method
from coterie.llm.tables.contrast import comparison_notes, contrasts, verdict_note
from coterie.llm.tables.mechanism import mechanism_notes, mechanism_rows
from coterie.llm.tables.runs import RunResult
from coterie.llm.tables.study import NAMES, WITHOUT_BACKBONE, Study, column, imbalances

METHODS: tuple[Method, ...] = ("central", "fedavg", "fedprox", "local", "pplr")
OTHERS = ("fedavg", "fedprox", "local")
_LABELS = dict(zip(COLUMNS, ("R@10", "R@20", "N@10", "N@20"), strict=True))
# Nothing needs to cross where nobody works together, or where everything is in one place.
_SILENT = {"central", "local"}

_NOTES = (
    "Mean ± standard deviation over seeds on the test users of all clients. Imbalance is the "
    "median over seeds of (best - worst) / worst client by R@10; it is infinite where the worst "
    "client finds nothing, in as many seeds as said. The same users and organisations in all rows.",
    "trained: numbers that a client trains. Bytes are those of training, a client and round; a "
    "client is an organisation with a language model, a single user in FedMF, LightFR and "
    "FedPerGNN. Nothing needs to cross where all data are in one place, nor where nobody sends.",
    "popularity counts interactions before the test. Rows without a language model learn from the "
    "public users too, on whom small language models are pre-trained; they are not measured.",
)


def main_table(study: Study) -> Report:
    """Reproduce Table 1 for the study's data set."""
    rows: list[dict[str, Any]] = []
    view: list[dict[str, Any]] = []
    notes: list[str] = []
    trivial = study.without_backbone("Table 1: without a language model", WITHOUT_BACKBONE)
    for name, results in trivial.items():
        rows += _rows(study, "", name, results)
        view.append(_line(study, "", name, results))
    for backbone in study.backbones:
        by_method = study.methods(f"Table 1: {backbone}", study.tuned(backbone), METHODS)
        for method, results in by_method.items():
            rows += _rows(study, backbone, method, results)
            view.append(_line(study, backbone, method, results))
        found = contrasts(by_method, OTHERS)
        notes += [verdict_note(backbone, found), *comparison_notes(backbone, found)]
        rows += mechanism_rows(study, backbone, by_method["pplr"])
        notes += mechanism_notes(backbone, by_method["pplr"])
        notes += _paper_note(study, backbone)
    clients = study.settings.data.clients
    title = f"Table 1, {study.data}: {study.n_seeds}, {clients} clients"
    return Report(study.file("table1"), title, rows, view, [*_NOTES, *notes])


def _rows(
    study: Study, backbone: str, method: str, results: Sequence[RunResult]
) -> list[dict[str, Any]]:
    """Rows for programs, one a number."""
    printed = table1(study.data, backbone, method) or (None,) * len(COLUMNS)
    values = {f"test/{n}": column(results, f"test/{n}") for n in COLUMNS}
    papers = dict(zip(values, printed, strict=True))
    values |= {f"valid/{n}": column(results, f"valid/{n}") for n in COLUMNS}
    unequal = imbalances(results)
    values["test/imbalance_median"] = [float(np.median(unequal))]
    values["test/imbalance_infinite"] = [float(np.isinf(unequal).sum())]
    values["test/evenness"] = [result.evenness() for result in results]
    values["test/recall@10_worst"] = [result.worst() for result in results]
    others = ("trained", "up", "down", "rounds", "best_round", "seconds")
    values |= {name: column(results, name) for name in others if name in results[0].metrics}
    return [
        study.row(method, name, numbers, papers.get(name), backbone=backbone)
        for name, numbers in values.items()
        if not np.isnan(numbers).all()
    ]


def _line(study: Study, backbone: str, method: str, results: Sequence[RunResult]) -> dict[str, Any]:
    """Row for people."""
    line: dict[str, Any] = {"backbone": backbone, "method": NAMES[method]}
    printed = table1(study.data, backbone, method)
    for place, name in enumerate(COLUMNS):
        text = str(spread(column(results, f"test/{name}")))
        line[_LABELS[name]] = text if printed is None else f"{text} ({printed[place]:.4f})"
    unequal = imbalances(results)
    line["imbalance"] = f"{np.median(unequal):.2f}"
    line["infinite"] = f"{int(np.isinf(unequal).sum())} of {len(unequal)}"
    for name, unit in (("trained", ""), ("up", " B"), ("down", " B")):
        values = [] if unit and method in _SILENT else column(results, name)
        known = [value for value in values if value == value]
        line[f"{name}{unit}"] = f"{np.mean(known):,.0f}" if known else None
    return line


def _paper_note(study: Study, backbone: str) -> list[str]:
    if table1(study.data, backbone, "pplr") is None:
        return []
    return [f"The paper's numbers beside {backbone} are those of {PAPER_BACKBONES[backbone]}."]
