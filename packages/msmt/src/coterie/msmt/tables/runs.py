"""One run of a table, and how its numbers are called."""

from __future__ import annotations

from dataclasses import replace

from coterie.core.run.driver import FederatedRun
from coterie.core.tables.result import RunResult
from coterie.msmt.comparison import followed, who
from coterie.msmt.experiment import Experiment
from coterie.msmt.settings.run import Settings

WHOSE = "whose"
"""Of `RunResult.found`: ``global`` or ``personal``, what a method is judged by."""


def train(settings: Settings) -> RunResult:
    """Run to the end; ``course`` is what every scenario measured in every round."""
    experiment = Experiment(settings)
    run = FederatedRun(experiment.federation())
    result = followed(run, experiment.task.schema.n_scenarios)
    return judged_by(result, who(experiment))


def judged_by(result: RunResult, whose: str) -> RunResult:
    """Judge a run by the global or the personal models, whose best round is another."""
    found = {**result.found, WHOSE: whose}
    return replace(result, chosen_by=f"eval/{whose}_auc", found=found)
