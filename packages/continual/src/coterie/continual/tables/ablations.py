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
    over_others,
    over_others_on_validation,
    over_users,
    sentence,
)
from coterie.continual.tables.study import (
    BACKBONE_NAMES,
    METRIC_NAMES,
    NAMES,
    Study,
    averages,
    validations,
)
from coterie.core.tables.contrast import Contrast
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Line, Sheet
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
    )
    drawn: dict[str, Mapping[str, Contrast]] = {}
    for backbone, results in study.by_backbone(table, methods).items():
        in_paper = backbone == "fedmf" and study.settings.top_k == 20
        name = BACKBONE_NAMES[backbone]
        lines = {m: sheet.line(backbone=name, method=NAMES[m]) for m in results}
        part = _Part(sheet, backbone, lines, results, published if in_paper else {})
        found = [part.tested(place, metric) for place, metric in enumerate(METRICS)]
        drawn[f"{name}, test"] = found[0]
        drawn[f"{name}, validation"] = part.validated()
    panel = differences(drawn, f"NDCG@{study.settings.top_k}")
    return sheet.report(table, f"ablations on the {side}", [panel])


class _Part:
    """The part of one backbone."""

    def __init__(
        self,
        sheet: Sheet[Study],
        backbone: str,
        lines: Mapping[str, Line],
        results: Results,
        paper: Mapping[str, Any],
    ) -> None:
        self.sheet, self.backbone, self.lines = sheet, backbone, lines
        self.results, self.paper, self.top_k = results, paper, sheet.study.settings.top_k

    def tested(self, place: int, metric: str) -> Mapping[str, Contrast]:
        """Add a metric of the test; ``place`` is that in the paper's table."""
        name, label = f"{metric}@{self.top_k}", f"{METRIC_NAMES[metric]}@{self.top_k}"
        values = {method: averages(runs, name) for method, runs in self.results.items()}
        for method, numbers in values.items():
            paper = self.paper[method][place] if method in self.paper else None
            self._add(label, method, f"test/average/{name}", numbers, paper)
            if method != OWN:
                decrease = f"{100 * (np.mean(numbers) / np.mean(values[OWN]) - 1):+.1f}"
                if paper is not None:
                    printed = TABLES["decreases"][self.sheet.study.data][method][place]
                    decrease += f" ({printed:+.1f})"
                self.lines[method][f"{label} decrease"] = decrease
        return self._compared(over_others(self.results, name), label, name)

    def validated(self) -> Mapping[str, Contrast]:
        """Add what validation says of the same runs."""
        name, label = f"valid/average/ndcg@{self.top_k}", f"validation N@{self.top_k}"
        for method, runs in self.results.items():
            self._add(label, method, name, validations(runs), None)
        return self._compared(over_others_on_validation(self.results), label, None)

    def _add(
        self, label: str, method: str, metric: str, values: list[float], paper: float | None
    ) -> None:
        line = self.lines[method]
        self.sheet.cell(line, label, method, metric, values, paper, backbone=self.backbone)

    def _compared(
        self, found: Mapping[str, Contrast], label: str, tested: str | None
    ) -> Mapping[str, Contrast]:
        where = f"{BACKBONE_NAMES[self.backbone]}, {label}"
        for method, contrast in found.items():
            self.lines[method][f"{label}: F³CRec minus it"] = in_short(contrast)
            users = over_users(self.results, method, tested) if tested else None
            self.sheet.notes.append(sentence(contrast, where, users))
        self.sheet.notes.append(noise_note(found, where))
        return found
