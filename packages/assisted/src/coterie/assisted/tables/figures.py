"""Figures 4 to 6: settings of MTAL over assistance rounds, beside joint and separate models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from coterie.assisted.tables.ablations import NOTES, slides
from coterie.assisted.tables.study import Study
from coterie.assisted.tables.variants import BASE, Ablation, ablations
from coterie.core.tables.curves import mean_curve
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import Curve, Curves
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results

_ABOUT = (
    "Validation after each round (in the reading released the test, as in the slides), mean over "
    "seeds; round 0 is the base model. Joint and Alone are of their best epoch. In brackets the "
    "slides' curves, on the test, read by eye to 0.003."
)


def ablation_figure(study: Study, which: str) -> Report:
    """Draw the settings of MTAL round by round for the study's data set."""
    plans = ablations(study)
    every = {(plan.cell, name): how for plan in plans for name, how in plan.all.items()}
    found = study.run_all(which, every)
    first = plans[0]
    sheet = Sheet(study, study.setup(first.variants[first.reference]), _ABOUT, *NOTES)
    panels = []
    last = {plan.cell.feedback: plan for plan in plans}
    for plan in plans:
        results = {name: found[plan.cell, name] for name in plan.all}
        panels.append(panel(plan, results, legend=plan in last.values()))
        for name in (*plan.variants, *plan.lines):
            _add_line(sheet, plan, name, results)
    what = f"settings of MTAL over rounds, {study.settings.reading} reading"
    return sheet.report(which, what, panels, columns=2)


figure_4, figure_5, figure_6 = (
    partial(ablation_figure, which=f"Figure {number}") for number in (4, 5, 6)
)
"""Of MovieLens 1M, 10M and 100K in the paper."""


def panel(plan: Ablation, results: Results, legend: bool) -> Curves:
    """Draw a cell: a curve for each variant from round 0 on, a line across for the others."""
    start = best(results[BASE])
    last = max(run.rounds for name in plan.variants for run in results[name])
    drawn = {}
    for name in plan.variants:
        found = mean_curve(results[name], lambda run: run.curve(run.chosen_by))
        drawn[name] = Curve([0.0, *found.x], [start, *found.y])
    for name in plan.lines:
        drawn[name] = Curve([0.0, float(last)], [best(results[name])] * 2)
    return Curves("assistance round", plan.cell.label, drawn, legend)


def best(runs: Sequence[RunResult]) -> Spread:
    """Summarise the best value of each seed's curve."""
    return spread([run.best(run.chosen_by) for run in runs])


def _add_line(sheet: Sheet[Study], plan: Ablation, name: str, results: Results) -> None:
    """Add a line: where a curve starts, its best value and its end."""
    study, runs, key = sheet.study, results[name], results[name][0].chosen_by
    where = {**plan.cell.names, "reading": study.settings.reading}
    read, moves = slides(study, plan.cell, name), name in plan.variants
    line = sheet.line(cell=plan.cell.label, setting=name)
    starts = [run.best(key) for run in results[BASE]] if moves else []
    line["round 0"] = cell(starts, read.get("start"))
    values = [run.best(key) for run in runs]
    sheet.cell(line, "best", name, f"best/{key}", values, read.get("best"), **where)
    if not moves:
        return
    rounds = [float(run.best_round) for run in runs]
    line["in round"] = cell(rounds, read.get("best_round"), digits=0)
    line["last"] = cell([run.last(key) for run in runs], read.get("end"))
    for number in range(1, max(run.rounds for run in runs) + 1):
        at = [run.curve(key)[number - 1] for run in runs if run.rounds >= number]
        sheet.row(name, key, at, round=number, **where)
