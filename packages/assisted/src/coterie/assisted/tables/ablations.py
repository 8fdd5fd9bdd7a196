"""Table 3 and Figures 4 to 6: rates, weights and half of the users in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from coterie.assisted.published import curve
from coterie.assisted.readings import MODELS, baseline
from coterie.assisted.settings import Settings
from coterie.assisted.tables.rows import as_printed, rated
from coterie.assisted.tables.study import Cell, Study
from coterie.core.settings.schema import changed
from coterie.core.style import Roles, better_of
from coterie.core.tables.means import mean_curve
from coterie.core.tables.paired import Spread, contrasts, spread
from coterie.core.tables.plots import Curve, Curves
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Line, Sheet, cell
from coterie.core.tables.study import Results

BASE, WEIGHTS, HALF = "base model", "w optimised", "half in common"


@dataclass(frozen=True)
class Ablation:
    """What is varied in a cell.

    Attributes:
        cell: which.
        reference: name of the variant that optimised weights and half in common differ from.
        variants: name -> settings of MTAL.
        base: settings of the base model, round 0.
        lines: name -> settings of models that are joint or apart.
    """

    cell: Cell
    reference: str
    variants: dict[str, Settings]
    base: Settings
    lines: dict[str, Settings]

    @property
    def all(self) -> dict[str, Settings]:
        """Everything by name."""
        return {BASE: self.base, **self.variants, **self.lines}


def ablations(study: Study) -> list[Ablation]:
    """List what is varied in each cell of a study."""
    reading = study.settings.reading
    return [ablation(cell, study.tuned(cell, reading)) for cell in study.cells(shown=True)]


def ablation(cell: Cell, settings: Settings) -> Ablation:
    """Vary the settings of MTAL as the public code does.

    Weights and alignment are varied at η = 0.1 in the reading released, else at the η of the
    settings, both held constant.
    """
    released = settings.reading == "released"
    plain = changed(as_printed(settings), {"assist.weights": "constant", "data.common": 1.0})
    rule, eta = ("lbfgs", 0.1) if released else ("optimal", settings.assist.eta)
    reference = rated(plain, "constant", eta)
    variants = {f"η {rate:g}": rated(plain, "constant", rate) for rate in sorted({0.1, 0.3, eta})}
    variants |= {
        "η optimised": rated(plain, rule, 0.1),
        WEIGHTS: changed(reference, {"assist.weights": rule}),
        HALF: changed(reference, {"data.common": 0.5}),
    }
    untrained = cell.untrained
    lines = {
        "Joint AAE": baseline(plain, "joint", "aae"),
        "Alone AAE": baseline(plain, "alone", "aae"),
        f"Alone {MODELS[untrained]}": baseline(plain, "alone", untrained),
    }
    return Ablation(cell, f"η {eta:g}", variants, baseline(plain, "alone", "base"), lines)


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


# Figures 4 to 6: settings of MTAL over assistance rounds, beside joint and separate models.

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
    for plan in plans:
        results = {name: found[plan.cell, name] for name in plan.all}
        panels.append(panel(plan, results))
        for name in (*plan.variants, *plan.lines):
            _add_line(sheet, plan, name, results)
    what = f"settings of MTAL over rounds, {study.settings.reading} reading"
    return sheet.report(which, what, panels, columns=2)


figure_4, figure_5, figure_6 = (
    partial(ablation_figure, which=f"Figure {number}") for number in (4, 5, 6)
)
"""Of MovieLens 1M, 10M and 100K in the paper."""


def panel(plan: Ablation, results: Results) -> Curves:
    """Draw a cell: a curve for each variant from round 0 on, a line across for the others."""
    start = best(results[BASE])
    last = max(run.rounds for name in plan.variants for run in results[name])
    drawn = {}
    for name in plan.variants:
        found = mean_curve(results[name], lambda run: run.curve(run.chosen_by))
        drawn[name] = Curve([0.0, *found.x], [start, *found.y])
    for name in plan.lines:
        drawn[name] = Curve([0.0, float(last)], [best(results[name])] * 2)
    return Curves(
        "assistance round",
        plan.cell.short,
        drawn,
        title=plan.cell.organisations,
        roles=Roles(baselines=tuple(plan.lines), better=better_of(plan.cell.higher)),
        bounds=(0.0, None),
    )


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
