"""A run of PF-MSMTrec beside what the same scenarios have in other ways: a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from coterie.core.federation.federation import Federation
from coterie.core.files import write_text
from coterie.core.run.checkpoint import BEST
from coterie.core.run.driver import FederatedRun
from coterie.core.run.simulated import read_run
from coterie.core.settings.sections import PrivacySettings
from coterie.core.style import Roles
from coterie.core.tables.following import follow
from coterie.core.tables.jobs import Counting
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.plots import SHARE, Curve, Curves
from coterie.core.tables.report import markdown_table
from coterie.core.tables.result import NAN, RunResult
from coterie.msmt.data.describe import describe
from coterie.msmt.data.task import Task
from coterie.msmt.settings import Settings

TABLE, PICTURE = "comparison.md", "comparison.png"
OWN, ORACLE = "PF-MSMTrec", "best possible"
_NO_NOISE = {"privacy": PrivacySettings()}  # nothing is sent that it could cover
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "alone": {"method": "local", **_NO_NOISE},
    "FedAvg": {"method": "fedavg"},
    "pooled": {"method": "central", **_NO_NOISE},
}
"""What a run is compared with: every scenario alone, the average of all, all samples in one place;
the same network and the same rounds."""
ABOUT = (
    "Test AUC of the round that is best on validation samples, the same network and as many rounds "
    "for all. alone: each scenario by itself; pooled: one model of all samples in one place; best "
    "possible: by the true probabilities."
)
Scenarios = Mapping[str, Sequence[float]]
"""Test AUC of every scenario, by task."""


class Compared(Protocol):
    """An experiment of this paper, as `coterie.msmt.experiment.Experiment`, which uses this."""

    @property
    def settings(self) -> Settings:
        """With the reading resolved."""
        ...

    @property
    def task(self) -> Task:
        """What the scenarios hold."""
        ...

    @property
    def answer_is_own(self) -> bool:
        """Whether a method gives each scenario its own model."""
        ...

    def federation(self) -> Federation:
        """Join both halves with the scenarios' data."""
        ...

    def beside(self, values: Mapping[str, Any]) -> Compared:
        """Make the experiment of other settings on the same samples."""
        ...


def who(experiment: Compared) -> str:
    """Whose measures a method is judged by: ``personal`` or ``global``."""
    return "personal" if experiment.answer_is_own else "global"


def followed(run: FederatedRun, n_scenarios: int) -> RunResult:
    """Run to the end; ``course`` is what every scenario measured in every round."""
    course: dict[str, list[list[float]]] = {}

    def note(result: RunResult) -> None:
        nothing = [[NAN] * n_scenarios]
        for name, (ids, values) in run.journal.clients.items():
            if name.startswith(("eval/", "test/")):
                found = torch.full((n_scenarios,), torch.nan, dtype=torch.float64)
                found[ids] = values.double()
                missed = result.rounds - 1 - len(course.get(name, ()))
                course[name] = [*course.get(name, ()), *nothing * missed, found.tolist()]

    result = follow(run, after_round=note)
    result.course = {
        name: [*rows, *[[NAN] * n_scenarios] * (result.rounds - len(rows))]
        for name, rows in course.items()
    }
    return result


def of_scenarios(result: RunResult, whose: str, tasks: Sequence[str]) -> Scenarios:
    """Give what every scenario had in the best round."""
    place = result.best_round - 1
    return {task: result.course[f"test/{whose}_auc_{task}"][place] for task in tasks}


def compare(experiment: Compared, module: FederatedRun, folder: Path) -> list[dict[str, Any]]:
    """Train what a run is compared with; write `TABLE` and `PICTURE`.

    Args:
        experiment: of PF-MSMTrec.
        module: its finished run.
        folder: of the run, with its best checkpoint.

    Returns:
        A row for each scenario and task, and their means.

    Raises:
        UserError: a file cannot be written, or the checkpoint is damaged.
    """
    task, monitor = experiment.task, module.federation.monitor
    assert monitor is not None
    tests = {OWN: at_best(experiment, folder)}
    rounds: dict[str, Sequence[float]] = {
        OWN: [row.get(monitor.key, NAN) for row in module.history]
    }
    lacking = {name: task.lacks(values["method"]) for name, values in OTHERS.items()}
    others = {name: values for name, values in OTHERS.items() if lacking[name] is None}
    with Counting(TABLE, len(others), experiment.settings.run.progress) as bar:
        for name, values in others.items():
            other = experiment.beside(values)
            result = followed(FederatedRun(other.federation()), task.schema.n_scenarios)
            tests[name] = of_scenarios(result, who(other), task.schema.tasks)
            rounds[name] = result.curve(monitor.key)
            bar.done(name)
    if task.truth is not None:
        tests[ORACLE] = oracle(task)
    rows = table(task, tests)
    title = f"{OWN} beside other methods on {task.name}, seed {experiment.settings.seed}"
    written = [{name: _cell(value) for name, value in row.items()} for row in rows]
    text = [f"# {title}", "", ABOUT, "", *markdown_table(written)]
    text += ["", *(f"{name} is left out: {why}." for name, why in lacking.items() if why)]
    write_text(folder / TABLE, "\n".join(text) + "\n")
    plot_panels(panels(task, tests, rounds), title, folder / PICTURE)
    return rows


def at_best(experiment: Compared, folder: Path) -> Scenarios:
    """Measure the best round of a run again, by its checkpoint.

    Raises:
        UserError: the checkpoint is damaged.
    """
    run = FederatedRun(experiment.federation())
    run.load_plain(read_run(folder / "checkpoints" / BEST)["federation"])
    run.retest()
    found = {}
    for task in experiment.task.schema.tasks:
        ids, values = run.journal.clients[f"test/{who(experiment)}_auc_{task}"]
        found[task] = values[ids.argsort()].tolist()
    return found


def oracle(task: Task) -> Scenarios:
    """Give the test AUC of the true probabilities; NaN where it is not defined."""
    rows = describe(task)
    found = {}
    for name in task.schema.tasks:
        values = [row.get(f"{name} best AUC") for row in rows]
        found[name] = [NAN if value is None else value for value in values]
    return found


def table(task: Task, tests: Mapping[str, Scenarios]) -> list[dict[str, Any]]:
    """Lay test AUCs out: a row for each scenario and task, then the means over scenarios."""
    names, counts = task.schema.scenarios, task.clients.lengths.tolist()
    rows: list[dict[str, Any]] = [
        {"scenario": name, "train": count, "task": each}
        | {method: found[each][place] for method, found in tests.items()}
        for each in task.schema.tasks
        for place, (name, count) in enumerate(zip(names, counts, strict=True))
    ]
    for each in task.schema.tasks:
        means = {method: mean_known(found[each]) for method, found in tests.items()}
        rows.append({"scenario": "mean", "train": sum(counts), "task": each, **means})
    return rows


def panels(
    task: Task, tests: Mapping[str, Scenarios], rounds: Mapping[str, Sequence[float]]
) -> list[Curves]:
    """Draw validation over rounds, and the test of each task by the size of a scenario."""
    counts = task.clients.lengths.tolist()
    by_size = len(set(counts)) == len(counts)
    order = sorted(range(len(counts)), key=lambda place: counts[place] if by_size else place)
    x = [counts[place] if by_size else place + 1 for place in order]
    label = "training samples of the scenario" if by_size else "scenario"
    curves = {name: _curve(values) for name, values in rounds.items()}
    roles = Roles(OWN, (ORACLE,), "higher")
    found = [Curves("round", "validation AUC", curves, roles=roles, bounds=SHARE)]
    for each in task.schema.tasks:
        drawn = {
            name: Curve(x, [spread([of[each][place]]) for place in order])
            for name, of in tests.items()
        }
        found.append(Curves(label, "test AUC", drawn, title=each, roles=roles, bounds=SHARE))
    return found


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _curve(values: Sequence[float]) -> Curve:
    known: dict[float, Spread] = {
        number: spread([value]) for number, value in enumerate(values, 1) if value == value
    }
    return Curve(list(known), list(known.values()))


def mean_known(values: Sequence[float]) -> float:
    """Mean of the values that are numbers; NaN without any."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else NAN
