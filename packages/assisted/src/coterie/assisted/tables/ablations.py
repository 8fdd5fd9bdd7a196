"""Table 3: rates, weights and half of the users in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.assisted.published import curve
from coterie.assisted.tables.cells import Cell
from coterie.assisted.tables.study import Study
from coterie.assisted.tables.variants import BASE, Ablation, ablations
from coterie.core.tables.contrast import contrasts
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Line, Sheet

NOTES = (
    "Half in common: the other users (or items) are known to each organisation under a name of its "
    "own. The public code tells their residuals to everybody all the same, so it understates what "
    "is lost.",
    "Optimised: in the reading recommended by closed form, Newton's method or on the simplex, in "
    "released by L-BFGS from η = 0.1, as the public code.",
)
_COLUMNS = (
    "test: of the best round, mean ± standard deviation over seeds. last: what the last round has "
    "on validation (in the reading released on the test, as in the slides). In brackets the "
    "slides' curves, on the test, read by eye to 0.003: their best value (of the base model, round "
    "0), and round 10."
)


def ablation_table(study: Study) -> Report:
    """Reproduce the slides' ablations for the study's data set."""
    plans = ablations(study)
    wanted = [{BASE: plan.base, **plan.variants} for plan in plans]
    every = {
        (plan.cell, name): how
        for plan, part in zip(plans, wanted, strict=True)
        for name, how in part.items()
    }
    found = study.run_all("Table 3", every)
    first = plans[0]
    sheet = Sheet(study, study.setup(first.variants[first.reference]), _COLUMNS, *NOTES)
    names = dict.fromkeys(name for part in wanted for name in part)
    lines = {name: sheet.line(setting=name) for name in names}
    for plan, part in zip(plans, wanted, strict=True):
        results = {name: found[plan.cell, name] for name in part}
        for name, runs in results.items():
            _add(sheet, lines[name], plan.cell, name, runs)
        sheet.notes.append(difference_note(plan, results))
    return sheet.report("Table 3", f"settings of MTAL, {study.settings.reading} reading")


def slides(study: Study, cell: Cell, name: str) -> dict[str, float]:
    """Give what the slides' curve of a setting says; nothing where the data are others."""
    if not cell.is_shown:
        return {}
    setting = name.replace("η", "eta")
    return curve(study.data, cell.feedback, cell.align, setting)


def difference_note(plan: Ablation, results: Mapping[str, Sequence[RunResult]]) -> str:
    """Compare the reference with every variant of a cell, paired over seeds."""
    values = {name: column(results[name], plan.cell.metric) for name in plan.variants}
    found = contrasts(values, plan.reference, higher=plan.cell.higher)
    said = [f"{one.text()}, {one.verdict}" for one in found.values()]
    return f"{plan.cell.label}, {plan.reference} minus: {'; '.join(said)}."


def _add(sheet: Sheet[Study], line: Line, cell: Cell, name: str, runs: Sequence[RunResult]) -> None:
    read, study = slides(sheet.study, cell, name), sheet.study
    paper = read.get("start") if name == BASE else read.get("best")
    where = {**cell.names, "reading": study.settings.reading}
    sheet.cell(
        line, f"{cell.label}: test", name, cell.metric, column(runs, cell.metric), paper, **where
    )
    if name == BASE:
        line[f"{cell.label}: last"] = "-"
        return
    last = [run.last(run.chosen_by) for run in runs]
    metric = f"last/{cell.metric.removeprefix('test/')}"
    sheet.cell(line, f"{cell.label}: last", name, metric, last, read.get("end"), **where)
