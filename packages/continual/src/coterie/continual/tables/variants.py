"""Tables 9 and 10, not of the paper: what a client's memory is good for, and a smaller step.

Each line is a variant, chosen and tuned on validation alone; the test stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.continual.experiment import Experiment
from coterie.continual.settings import Settings
from coterie.continual.tables.study import (
    BACKBONE_NAMES,
    CONSUMED,
    NAMES,
    Study,
    averages,
    in_short,
    label_of,
    validations,
)
from coterie.core.settings.schema import changed
from coterie.core.style import Roles
from coterie.core.tables.dots import Differences
from coterie.core.tables.paired import Contrast, contrasts
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, Values
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results

REMEMBERING = ("ft", "reg", "f3crec")
LENGTHS = (30, 100)
STEPS = (0.1, 0.2, 0.3, 0.5, 0.7)
SLOWER = (0.1, 0.3)
_NOTE = (
    "Mean ± standard deviation over seeds, average over the blocks after the first. Minus the "
    "paper's: the difference from the first line of the same method, p of a paired t-test over "
    "seeds, adjusted for the lines of the method (Holm)."
)


Line = tuple[str, str]
"""Method and what is different."""


@dataclass(frozen=True)
class Variant:
    """A line of the table.

    Attributes:
        method: of the run.
        how: what is different from the paper's, in words.
        settings: of the run.
    """

    method: str
    how: str
    settings: Settings


def memory_table(study: Study) -> Report:
    """Compare distilling what a client remembers with leaving it out."""
    sheet = Sheet(
        study,
        _NOTE,
        "Leave out N: at the end of a block the client notes the N of its train items that the "
        "best round ranks highest, and does not rank them in later blocks; all: every train item.",
        CONSUMED,
    )
    variants = {b: _memories(study.tuned(b)) for b in study.backbones}
    return _table(study, sheet, "Table 9", "what the client's memory is good for", variants)


def step_table(study: Study) -> Report:
    """Compare the server's temporal mean with a smaller server learning rate."""
    sheet = Sheet(
        study,
        _NOTE,
        "Server learning rate of the blocks after the first: Q_g moves by that share of the mean "
        "of the clients' changes.",
        CONSUMED,
    )
    variants = {b: _steps(study.tuned(b)) for b in study.backbones}
    return _table(study, sheet, "Table 10", "temporal mean or a smaller step", variants)


def _memories(settings: Settings) -> list[Variant]:
    every = Experiment(settings).stream.blocks[-1].n_items
    uses = {f"leave out {n}": ("leave-out", n) for n in LENGTHS} | {"all": ("leave-out", every)}
    found = []
    for method in REMEMBERING:
        plain = changed(settings, {"method": method, "replay.use": "distil"})
        found.append(Variant(method, "as in the paper", plain))
        for how, (use, n) in uses.items():
            left = changed(plain, {"replay.use": use, "replay.leave_out_n": n})
            found.append(Variant(method, how, left))
        if method != "f3crec":
            found += [_slower(Variant(method, "all, ", left), lr) for lr in SLOWER]
    both = changed(plain, {"replay.use": "both", "replay.leave_out_n": every})
    return [*found, Variant("f3crec", "distilled, and all left out", both)]


def _steps(settings: Settings) -> list[Variant]:
    found = []
    for method in ("ft", "f3crec-wo-cc"):
        plain = changed(settings, {"method": method, "server_lr": 1.0})
        found.append(Variant(method, "as in the paper", plain))
        found += [_slower(Variant(method, "", plain), lr) for lr in STEPS]
    return found


def _slower(of: Variant, lr: float) -> Variant:
    """The same with a smaller server learning rate."""
    return Variant(of.method, f"{of.how}server_lr {lr:g}", changed(of.settings, {"server_lr": lr}))


def _table(
    study: Study, sheet: Sheet[Study], table: str, what: str, variants: Mapping[str, list[Variant]]
) -> Report:
    panels, measure = [], label_of(_metrics(study)[0])
    for backbone, lines in variants.items():
        name = BACKBONE_NAMES[backbone]
        runs = study.run_all(f"{table}: {name}", {(v.method, v.how): v.settings for v in lines})
        drawn = {}
        for method in dict.fromkeys(v.method for v in lines):
            own = {how: found for (of, how), found in runs.items() if of == method}
            found = _lines(sheet, backbone, method, own)
            drawn[NAMES[method]] = {how: c.found for how, c in found.items()}
        sheet.notes += _chosen(name, study, runs)
        roles, what_of = Roles(NAMES["f3crec"], better="higher"), f"{measure} minus the paper's"
        panels.append(Differences(what_of, drawn, title=name, roles=roles))
    return sheet.report(table, what, panels)


def _metrics(study: Study) -> list[str]:
    k = study.settings.top_k
    return [f"ndcg@{k}", f"recall@{k}", f"ndcg@{k}_unseen", f"recall@{k}_unseen"]


def _lines(sheet: Sheet[Study], backbone: str, method: str, runs: Results) -> dict[str, Contrast]:
    """Add the lines of a method; gives the differences of validation's NDCG on the test."""
    study, first = sheet.study, next(iter(runs))
    columns: dict[str, dict[str, Values]] = {
        "validation": {how: validations(found, _metrics(study)[0]) for how, found in runs.items()}
    }
    for metric in _metrics(study):
        columns[metric] = {how: averages(found, metric) for how, found in runs.items()}
    compared = {name: _minus(values, first) for name, values in columns.items()}
    for how in runs:
        line = sheet.line(backbone=BACKBONE_NAMES[backbone], method=NAMES[method], variant=how)
        for name, values in columns.items():
            tested = name != "validation"
            label = label_of(name) if tested else "validation N"
            key = f"test/average/{name}" if tested else "valid/average/ndcg"
            sheet.cell(line, label, method, key, values[how], backbone=backbone, variant=how)
            if how != first and name in ("validation", _metrics(study)[0]):
                line[f"{label} minus the paper's"] = in_short(compared[name][how])
    return compared[_metrics(study)[0]]


def _minus(values: Mapping[str, Values], first: str) -> dict[str, Contrast]:
    """Compare each variant with the first one; positive where the variant is higher."""
    turned = {name: -np.asarray(found) for name, found in values.items()}
    return contrasts(turned, first)


def _chosen(name: str, study: Study, runs: Mapping[Line, Sequence[RunResult]]) -> list[str]:
    """Say which line validation chooses, and how it compares with those of the other methods."""
    metric = _metrics(study)[0]
    valid = {line: validations(found, metric) for line, found in runs.items()}
    test = {line: averages(found, metric) for line, found in runs.items()}
    ascending = sorted(runs, key=lambda line: float(np.mean(valid[line])))
    of_each = {method: (method, how) for method, how in ascending}  # its best line
    best = ascending[-1]
    notes = [
        f"{name}: validation chooses {_named(best)} ({np.mean(valid[best]):.4f}); "
        f"{label_of(metric)} {np.mean(test[best]):.4f}."
    ]
    for part, values in (("validation", valid), (f"test {label_of(metric)}", test)):
        group = {_named(line): values[line] for line in of_each.values()}
        found = contrasts(group, _named(best))
        notes += [f"{name}, {part}: it minus {c.text()}: {c.verdict}." for c in found.values()]
    return notes


def _named(line: Line) -> str:
    method, how = line
    return f"{NAMES[method]}, {how}"
