"""What the tables share on paper: columns for each world, and tests paired over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.style import Roles
from coterie.core.tables.dots import Differences
from coterie.core.tables.paired import Contrast, compare, contrasts, holm
from coterie.core.tables.result import RunResult, at_best, known
from coterie.core.tables.sheet import Line, Sheet, cell
from coterie.msmt.comparison import mean_known, of_scenarios
from coterie.msmt.tables.study import ORACLE, WHOSE, Study

Worlds = Mapping[str, Sequence[RunResult]]
"""Runs by world, one a seed."""
Printed = Mapping[str, Mapping[str, float]]
"""The paper's numbers: scenario -> measure, as ``auc_ctr``, -> number."""
AUC = "auc"
_COSTS = ("cpu_seconds", "local_steps", "up_bytes", "down_bytes")
_OF_METHOD = ("psi", "psi_tower", "conflict", "opposed", "dual_weights", "distance", "own_weight")
NOTE = (
    "AUC of the test, mean over scenarios, of the round that is best on validation samples; mean ± "
    "standard deviation over seeds. CPU s: processor seconds of a run of each world with its "
    "evaluations, together."
)


def measured(results: Sequence[RunResult], name: str, part: str = "test") -> list[float]:
    """A measure of each run's best round, of the models that the method is judged by."""
    return [result.best(f"{part}/{result.found[WHOSE]}_{name}") for result in results]


def at_own_rounds(results: Sequence[RunResult]) -> list[float]:
    """Mean test AUC where each scenario has the round that is best on its own validation samples.

    A scenario without a validation AUC has the round that is best for the others, so that the mean
    is over the same scenarios as where all have one round.
    """
    return [_at_own_rounds(result, result.found[WHOSE]) for result in results]


def _at_own_rounds(result: RunResult, whose: str) -> float:
    valid, test = (np.array(result.course[f"{part}/{whose}_{AUC}"]) for part in ("eval", "test"))
    some = np.isfinite(valid).any(0)
    best = np.full(len(some), result.best_round - 1)
    best[some] = np.nanargmax(valid[:, some], axis=0)
    return float(np.nanmean(test[best, np.arange(len(best))]))


def add_line(
    sheet: Sheet[Study],
    labels: Mapping[str, Any],
    method: str,
    worlds: Worlds,
    printed: Printed,
    **more: Any,
) -> Line:
    """Add a method: AUC of each task in each world, costs, and what the paper has.

    Args:
        sheet: to be filled.
        labels: first cells of the line.
        method: name for programs.
        worlds: its runs; none where it cannot be trained.
        printed: what the paper has.
        more: of the rows for programs.
    """
    line, tasks = sheet.line(**labels), sheet.study.task.schema.tasks
    single = len(sheet.study.worlds) == 1
    for world, results in worlds.items():
        for task in tasks:
            label = task if single else f"{world}: {task}"
            line[label] = cell(measured(results, f"auc_{task}"))
        if single:
            line["mean"] = cell(measured(results, AUC))
            if method != ORACLE:
                line["validation"] = cell(measured(results, AUC, "eval"))
                line["best round"] = cell([float(r.best_round) for r in results], digits=0)
        add_rows(sheet, method, world, results, printed, more)
    seconds = [
        sum(costs)
        for costs in zip(
            *([r.total("cost/cpu_seconds") for r in results] for results in worlds.values()),
            strict=True,
        )
    ]
    line["CPU s"] = cell(seconds, digits=1)
    if sheet.study.is_papers:
        return line
    for name in dict.fromkeys(name for of in printed.values() for name in of):
        line[f"paper: {name}"] = f"{mean_known([of[name] for of in printed.values()]):.4f}"
    return line


def papers_note(study: Study, data: str) -> str:
    """Say what the paper's numbers are worth here."""
    if study.is_papers:
        return "The paper's numbers of the same scenarios are in the rows for programs."
    return (
        f"paper: its numbers of {data}, mean over scenarios. They are of other data: they stand "
        "beside ours for the order of the rows alone."
    )


def add_rows(
    sheet: Sheet[Study],
    method: str,
    world: str,
    results: Sequence[RunResult],
    printed: Printed,
    more: Mapping[str, Any],
) -> None:
    """Add everything of a method in a world for programs."""
    tasks, which = sheet.study.task.schema.tasks, {"world": world, **more}
    for name in (AUC, *(f"auc_{task}" for task in tasks)):
        sheet.row(method, f"test/{name}", measured(results, name), **which)
        if method != ORACLE:
            sheet.row(method, f"eval/{name}", measured(results, name, "eval"), **which)
    for task in tasks:
        _add_scenarios(sheet, method, task, results, printed, which)
    found = {f"cost/{name}": [r.total(f"cost/{name}") for r in results] for name in _COSTS}
    found |= {f"msmt/{name}": at_best(results, f"msmt/{name}") for name in _OF_METHOD}
    found["best_round"] = [float(result.best_round) for result in results]
    for name, values in found.items():
        if known(values):
            sheet.row(method, name, known(values), **which)


def _add_scenarios(
    sheet: Sheet[Study],
    method: str,
    task: str,
    results: Sequence[RunResult],
    printed: Printed,
    which: Mapping[str, Any],
) -> None:
    """Add a task's test AUC of each scenario, where it is defined."""
    names = sheet.study.task.schema.scenarios
    found = [of_scenarios(one, one.found[WHOSE], [task])[task] for one in results]
    for place, values in enumerate(zip(*found, strict=True)):
        usual = len(names) == len(found[0])
        name = names[place] if usual else f"scenario {place + 1}"
        paper = printed.get(name, {}).get(f"auc_{task}")
        if known(values):
            sheet.row(method, f"test/auc_{task}", known(values), paper, scenario=name, **which)


# How PF-MSMTrec compares with the other rows in a world: tests paired over seeds.

Table = Mapping[str, Mapping[str, Sequence[RunResult]]]
"""World -> label of a row -> runs, one a seed."""
Measure = Callable[[Sequence[RunResult]], list[float]]
"""A number of each run."""
_VERDICTS = {
    "better": "better than",
    "worse": "worse than",
    "within noise": "not to be told from",
    "not tested": "untested beside",
}


def _mean_auc(results: Sequence[RunResult]) -> list[float]:
    return measured(results, AUC)


def against(rows: Mapping[str, Sequence[RunResult]], own: str) -> dict[str, Contrast]:
    """Compare one row's mean AUC with each of the others."""
    return contrasts({label: _mean_auc(results) for label, results in rows.items()}, own)


def difference_notes(table: Table, own: str) -> list[str]:
    """Write out the tests, a line for each world, by what they say."""
    return [_difference_note(world, against(rows, own), own) for world, rows in table.items()]


def pair_note(table: Table, first: str, second: str, why: str, measure: Measure = _mean_auc) -> str:
    """Compare two rows in every world; Holm's adjustment is over the worlds.

    Args:
        table: the runs.
        first: label of a row.
        second: label of what is subtracted.
        why: what the comparison tells.
        measure: what is compared.
    """
    found = {
        world: compare(measure(rows[first]), measure(rows[second])) for world, rows in table.items()
    }
    adjusted = holm([one.p for one in found.values()])
    said = [
        Contrast(world, one, p).text(digits=2, scale=100)
        for (world, one), p in zip(found.items(), adjusted, strict=True)
    ]
    return f"{first} minus {second}, in points ({why}): {'; '.join(said)}."


def panels(table: Table, own: str) -> list[Differences]:
    """Draw what one row has over the others, a plot for each world."""
    return [
        Differences(
            f"{own} minus it, test AUC",
            {world: {label: one.found for label, one in against(rows, own).items()}},
            roles=Roles(better="higher"),
        )
        for world, rows in table.items()
    ]


def _difference_note(world: str, found: Mapping[str, Contrast], own: str) -> str:
    said = []
    for verdict, words in _VERDICTS.items():
        group = [one.text(digits=2, scale=100) for one in found.values() if one.verdict == verdict]
        if group:
            said.append(f"{words} {', '.join(group)}")
    n = next(iter(found.values())).found.n if found else 0
    how = f"Paired t-test over {n} seeds, 95 % interval, Holm over these."
    how = how if n > 1 else "One seed cannot be tested."
    return f"{world}, test AUC (mean of tasks), {own} minus, in points: {'; '.join(said)}. {how}"
