"""One run of a table, and how its numbers are called."""

from __future__ import annotations

from coterie.assisted.experiment import Experiment
from coterie.assisted.settings.run import Settings
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.following import follow
from coterie.core.tables.result import RunResult

_MEASURING = ("measure", "query", "answer")


def train(settings: Settings) -> RunResult:
    """Run to the end; the tests of the best round are metrics, the rounds' validation curves."""
    run = FederatedRun(Experiment(settings).federation())
    result = follow(run, _MEASURING)
    result.metrics |= run.results
    return result
