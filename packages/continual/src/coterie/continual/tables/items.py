"""Table 7: how far static and dynamic items move in the rankings of users who were away."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.continual.experiment import Experiment
from coterie.continual.published import TABLES
from coterie.continual.retention.base import score_items
from coterie.continual.settings import Method
from coterie.continual.tables.study import NAMES, Study
from coterie.continual.temporal_mean import knowledge_shift
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.paired import compare, spread
from coterie.core.tables.report import Report

METHODS: tuple[Method, ...] = ("f3crec", "f3crec-wo-itm")
SHARE = 0.2
COLUMNS = ("static items", "dynamic items", "diff")


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
        old, new = (
            _ranks(score_items(backbone, params, t[: len(before)])) for t in (before, table)
        )
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
    results = study.probing(ItemShift).methods("Table 7", study.settings, METHODS)
    if not all(run.found["static"] for run in results["f3crec"]):
        raise UserError("no user of a block is away in the next one: Table 7 needs some")
    in_paper = study.settings.model.name == "fedmf"
    rows, view = [], []
    values: dict[str, list[list[float]]] = {}
    for method in METHODS:
        static, dynamic = (
            [float(np.mean(run.found[kind])) for run in results[method]]
            for kind in ("static", "dynamic")
        )
        values[method] = [static, dynamic, [b - a for a, b in zip(static, dynamic, strict=True)]]
        published = TABLES["table7"].get(study.data, {}).get(method) if in_paper else None
        line = {"method": NAMES[method]}
        for place, column in enumerate(COLUMNS):
            paper = published[place] if published else None
            rows.append(study.row(method, f"rank change, {column}", values[method][place], paper))
            text = str(spread(values[method][place]))
            line[column] = text if paper is None else f"{text} ({paper:.4f})"
        view.append(line)
    notes = [
        "Mean ± standard deviation over seeds (the paper's number) of |rank' - rank| / rank over "
        "all items known before, for users trained in block t-1 and away in t, averaged over the "
        "transitions.",
        "Static and dynamic: the fifth of the items with the lowest and highest distance between "
        "the tables at the end of both blocks. That is the order of φ (Eq. 8), since a blended "
        "item keeps the share 1 - β / (1 + φ) of its move, which grows with φ.",
    ]
    for place, column in enumerate(COLUMNS):
        found = compare(*(values[method][place] for method in METHODS))
        notes.append(
            f"{column}: F³CRec minus w/o i.t.m {found.difference:+.4f}, paired over seeds "
            f"p = {found.p:.3g}."
        )
    title = f"Table 7, {study.data}: rate of change of item ranks, {study.n_seeds}"
    return Report(study.file("table7"), title, rows, view, notes)


def _ranks(scores: Tensor) -> Tensor:
    """Ranks from 1 of every item for every user, ``(C, n)`` float64."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, scores.shape[1] + 1).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).double()
