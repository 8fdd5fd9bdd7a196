"""Tables 4, 5 and 7: how far users and items move, and what users lose of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.continual.algorithm import knowledge_shift
from coterie.continual.experiment import Experiment
from coterie.continual.messages import EvaluationTable
from coterie.continual.proxies import ranks
from coterie.continual.published import TABLES
from coterie.continual.rehearsal import preference_shift
from coterie.continual.retention import score_items
from coterie.continual.tables.study import NAMES, Study, paired
from coterie.core.errors import UserError
from coterie.core.metrics.ranking import top_k
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.core.tensors.keys import Key

METHODS = ("f3crec", "f3crec-wo-arm", "spp")
SHARE = 0.2
Group = NDArray[np.int64]
Measure = Callable[[Mapping[str, Any], Group], float]


class UserShift:
    """Measure the shift (Eq. 2) after D1's first round, and NDCG on D0's test before and after D1.

    Of the users of both blocks that have a test item in D0.
    """

    def __init__(self) -> None:
        self.lists = self.ids = torch.empty(0, dtype=torch.int64)
        self.columns: dict[str, list[float]] = {}

    def after_round(self, experiment: Experiment, module: FederatedRun) -> None:
        """Look at the end of D0, the first round of D1 and the end of D1."""
        if module.block == 0 and not module.block_open:
            self._after_base(experiment, module)
        if module.block == 1 and module.block_round == 1:
            state, mine = module.server_state, module.store.take(self.ids)
            scores = score_items(experiment.client().backbone, mine.params, state.items)
            self.columns["shift"] = preference_shift(self.lists, scores).tolist()
        if module.block == 1 and not module.block_open:
            self.columns["after"] = _test_on_base(experiment, module, self.ids).tolist()

    def found(self) -> dict[str, Any]:
        """Give ``shift``, ``before`` (a00) and ``after`` (a10), one number a user."""
        return self.columns

    def _after_base(self, experiment: Experiment, module: FederatedRun) -> None:
        first, second = experiment.blocks[:2]
        tested = first.ids[first.test.lengths > 0]
        self.ids = tested[torch.isin(tested, second.ids)]
        state, mine = module.server_state, module.store.take(self.ids)
        scores = score_items(experiment.client().backbone, mine.best, state.best)
        self.lists = top_k(scores, experiment.settings.replay.top_n)
        self.columns["before"] = _test_on_base(experiment, module, self.ids).tolist()


def degradation_table(study: Study) -> Report:
    """Reproduce Table 4: what users lose of their performance on D0."""
    what = "degradation (a00 - a10) / a00"
    return _table(study, "Table 4", what, "degradation", _degradation)


def after_table(study: Study) -> Report:
    """Reproduce Table 5: performance on D0 after D1."""
    metric = f"ndcg@{study.settings.top_k} of D0 after D1"
    return _table(study, "Table 5", "performance on D0 after D1", metric, _mean)


def _table(study: Study, table: str, what: str, metric: str, measure: Measure) -> Report:
    settings, sheet = study.settings, Sheet(study)
    results = study.probing(UserShift).methods(table, settings, METHODS)
    groups = [_groups(run) for run in results["f3crec"]]
    in_paper = settings.model.name == "fedmf" and settings.top_k == 20
    published = TABLES[table.lower().replace(" ", "")].get(study.data, {}) if in_paper else {}
    values: dict[tuple[str, int], list[float]] = {}
    for place, group in enumerate(("static users", "dynamic users")):
        line = sheet.line(group=group)
        for method in METHODS:
            values[method, place] = of_seeds = [
                measure(run.found, chosen[place])
                for run, chosen in zip(results[method], groups, strict=True)
            ]
            paper = published[method][place] if method in published else None
            sheet.cell(line, NAMES[method], method, metric, of_seeds, paper, group=group)
    sheet.notes += _notes(study, groups, results) + _tests(values)
    return sheet.report(table, what)


def _test_on_base(experiment: Experiment, module: FederatedRun, ids: Tensor) -> Tensor:
    """NDCG on the test of D0 with the parameters of the last block's best round, ``(K,)``."""
    data = experiment.blocks[0]
    part = data.take(torch.searchsorted(data.ids, ids))
    down = EvaluationTable(module.server_state.best, split="test")
    key = Key.from_seed(experiment.settings.seed).fold(ids)
    return experiment.client().evaluate(down, module.store.take(ids), part, key)[0].ndcg[:, 0]


def _groups(run: RunResult) -> tuple[Group, Group]:
    """Places of the users with the lowest and with the highest shift."""
    order = np.argsort(run.found["shift"], kind="stable")
    if order.size < 2:
        raise UserError(
            f"only {order.size} users with a test item in block D0 are in D1 as well: too few for "
            "Tables 4 and 5"
        )
    size = max(1, round(SHARE * order.size))
    return order[:size], order[-size:]


def _mean(found: Mapping[str, Any], group: Group, name: str = "after") -> float:
    return float(np.mean(np.asarray(found[name])[group]))


def _degradation(found: Mapping[str, Any], group: Group) -> float:
    before = _mean(found, group, "before")
    return (before - _mean(found, group)) / before if before else float("nan")


def _notes(study: Study, groups: Sequence[tuple[Group, Group]], results: Results) -> list[str]:
    before = [
        [_mean(run.found, group, "before") for group in chosen]
        for run, chosen in zip(results["f3crec"], groups, strict=True)
    ]
    static, dynamic = np.mean(before, axis=0)
    notes = [
        "Groups: of the users with data in D0 and D1 and a test item in D0, the "
        f"{len(groups[0][0])} with the lowest and the highest shift (Eq. 2) after the first round "
        "of D1. The shift is F³CRec's for all methods, so they are compared on the same users.",
        f"a00 is the same for all methods here: {static:.4f} for static, {dynamic:.4f} for dynamic "
        "users.",
    ]
    if study.data in TABLES["table4"]:
        after, lost = (TABLES[name][study.data] for name in ("table5", "table4"))
        implied = [f"{NAMES[m]} {after[m][0] / (1 - lost[m][0]):.4f}" for m in METHODS]
        notes.append(
            "The paper's Tables 4 and 5 imply another a00 for each method, so its groups differ: "
            f"static users {', '.join(implied)}."
        )
    return notes


def _tests(values: Mapping[tuple[str, int], Sequence[float]]) -> list[str]:
    """Paired over seeds: dynamic minus static users of F³CRec; F³CRec minus each other method."""
    pairs = [("dynamic minus static users, F³CRec", ("f3crec", 1), ("f3crec", 0))]
    for place, group in enumerate(("static", "dynamic")):
        pairs += [
            (f"F³CRec minus {NAMES[method]}, {group} users", ("f3crec", place), (method, place))
            for method in METHODS[1:]
        ]
    return [paired(f"{label}:", values[first], values[second]) for label, first, second in pairs]


# Table 7: how far static and dynamic items move in the rankings of users who were away.

ITEM_METHODS = ("f3crec", "f3crec-wo-itm")
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
