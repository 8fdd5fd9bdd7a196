"""Table 7: how far static and dynamic items move in the rankings of users who were away."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.continual.experiment import Experiment
from coterie.continual.published import TABLES
from coterie.continual.retention.base import score_items
from coterie.continual.retention.proxies import ranks
from coterie.continual.tables.contrast import paired
from coterie.continual.tables.study import NAMES, Study
from coterie.continual.temporal_mean import knowledge_shift
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet

ITEM_METHODS = ("f3crec", "f3crec-wo-itm")
SHARE = 0.2
COLUMNS = ("static items", "dynamic items", "diff")
_NOTES = (
    "Mean ± standard deviation over seeds (the paper's number) of |rank' - rank| / rank over "
    "all items known before, for users trained in block t-1 and away in t, averaged over the "
    "transitions.",
    "Static and dynamic: the fifth of the items with the lowest and highest distance between "
    "the tables at the end of both blocks. That is the order of φ (Eq. 8), since a blended "
    "item keeps the share 1 - β / (1 + φ) of its move, which grows with φ.",
)


class ItemShift:
    """Measure rates of change of ranks between blocks, for users of t-1 who are away in t."""

    def __init__(self) -> None:
        self.before: Tensor | None = None
        self.static: list[float] = []
        self.dynamic: list[float] = []

    def after_round(self, experiment: Experiment, module: FederatedRun) -> None:
        """Look at the end of every block."""
        if module.block_open:
            return
        table, before = module.server_state.best, self.before
        self.before = table
        if before is None:
            return
        last, now = experiment.blocks[module.block - 1 : module.block + 1]
        away = last.ids[~torch.isin(last.ids, now.ids)]
        if not away.numel():
            return
        params = module.store.take(away).best
        backbone = experiment.client().backbone
        scores = [score_items(backbone, params, t[: len(before)]) for t in (before, table)]
        nothing = torch.zeros_like(scores[0], dtype=torch.bool)
        old, new = ((1 + ranks(one, nothing)).double() for one in scores)
        rate = ((old - new).abs() / old).mean(0)
        order = knowledge_shift(before, table[: len(before)]).argsort(stable=True)
        size = max(1, round(SHARE * order.numel()))
        self.static.append(float(rate[order[:size]].mean()))
        self.dynamic.append(float(rate[order[-size:]].mean()))

    def found(self) -> dict[str, Any]:
        """Give the mean rate of each transition, ``static`` and ``dynamic``."""
        return {"static": self.static, "dynamic": self.dynamic}


def item_table(study: Study) -> Report:
    """Reproduce Table 7."""
    results = study.probing(ItemShift).methods("Table 7", study.settings, ITEM_METHODS)
    if not all(run.found["static"] for run in results["f3crec"]):
        raise UserError("no user of a block is away in the next one: Table 7 needs some")
    published = TABLES["table7"].get(study.data) if study.settings.model.name == "fedmf" else None
    sheet = Sheet(study, *_NOTES)
    values: dict[str, list[list[float]]] = {}
    for method in ITEM_METHODS:
        static, dynamic = (
            [float(np.mean(run.found[kind])) for run in results[method]]
            for kind in ("static", "dynamic")
        )
        values[method] = [static, dynamic, [b - a for a, b in zip(static, dynamic, strict=True)]]
        line = sheet.line(method=NAMES[method])
        for place, (column, numbers) in enumerate(zip(COLUMNS, values[method], strict=True)):
            paper = published[method][place] if published else None
            sheet.cell(line, column, method, f"rank change, {column}", numbers, paper)
    for column, *both in zip(COLUMNS, *values.values(), strict=True):
        sheet.notes.append(paired(f"{column}: F³CRec minus w/o i.t.m", *both))
    return sheet.report("Table 7", "rate of change of item ranks")
