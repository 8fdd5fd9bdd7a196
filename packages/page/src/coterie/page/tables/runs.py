"""One run without Lightning's files and loggers, and what a table needs of it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.run.driver import FederatedRun
from coterie.core.tables.result import Result
from coterie.page.certificate.of_run import before_learning, certify_run
from coterie.page.experiment import Experiment
from coterie.page.settings.run import Settings

NAN = float("nan")
CHOSEN_BY = "eval/accuracy"
GLOBAL, LOCAL, OTHERS = "server_accuracy", "personal_accuracy", "global_accuracy"
"""The two columns of the paper's tables, and the global model on each client's samples."""
_MEASURING = {"evaluate"}  # steps whose traffic is not the method's
_OF_CLIENTS = tuple(f"test/{name}" for name in (LOCAL, OTHERS))


@dataclass
class RunResult(Result):
    """What a table needs of a run.

    Attributes:
        curves: every number that the run noted, by name, one value a round; NaN where a round has
            none. ``cost/up_bytes`` and ``cost/down_bytes`` are without evaluations,
            ``cost/cpu_seconds`` with them.
        clients: test accuracies of every client in the best round, NaN for one without.
        rounds: number of rounds.
        settled: whether the run ended before the last round, as the game had come to rest.
        certificate: what the certificate says of the run's end; None without one.
        certificate_before: the same of the run before anything was learnt.
    """

    with_none = ("certificate", "certificate_before")

    curves: dict[str, list[float]] = field(default_factory=dict)
    clients: dict[str, list[float]] = field(default_factory=dict)
    rounds: int = 0
    settled: bool = False
    certificate: dict[str, Any] | None = None
    certificate_before: dict[str, Any] | None = None

    def curve(self, name: str) -> list[float]:
        """One value a round; NaN where there is none."""
        return self.curves.get(name, [NAN] * self.rounds)

    @property
    def measured(self) -> list[int]:
        """Numbers, from 1, of the rounds that were evaluated."""
        return [n for n, value in enumerate(self.curve(CHOSEN_BY), 1) if value == value]

    @property
    def best_round(self) -> int:
        """The (first) round that is best on validation data."""
        return int(np.nanargmax(self.curve(CHOSEN_BY))) + 1

    def best(self, name: str) -> float:
        """A number of the best round."""
        return self.curve(name)[self.best_round - 1]

    def last(self, name: str) -> float:
        """A number of the last round that was evaluated."""
        return self.curve(name)[self.measured[-1] - 1]

    def cumulative(self, name: str) -> list[float]:
        """Sum of a cost up to and with each round; a round without counts as 0."""
        return np.nancumsum(self.curve(name)).tolist()

    def total(self, name: str) -> float:
        """Sum of a cost over the run; NaN where it was never noted."""
        if name not in self.curves:
            return NAN
        return math.fsum(value for value in self.curve(name) if value == value)


def train_run(settings: Settings, path: Path) -> None:
    """Make a run and write its `RunResult`."""
    train(settings).write(path)


def train(settings: Settings) -> RunResult:
    """Run a federation to its end."""
    module = FederatedRun(Experiment(settings).federation())
    result, best = RunResult(), -math.inf
    traffic = _traffic(module)
    while not module.finished:
        began = time.process_time()
        module.advance()
        noted = dict(module.journal.scalars)
        noted["cost/cpu_seconds"] = time.process_time() - began
        now = _traffic(module)
        noted |= {name: size - traffic[name] for name, size in now.items()}
        traffic = now
        _note(result, noted)
        if noted.get(CHOSEN_BY, NAN) > best:
            best = noted[CHOSEN_BY]
            result.clients = _of_clients(module)
    result.settled = module.round < settings.rounds
    if settings.method == "page" and settings.certify:
        chosen, before = settings.certificate, before_learning(module)
        result.certificate_before = certify_run(before, chosen, progress=False).to_dict()
        result.certificate = certify_run(module, chosen, progress=False).to_dict()
    return result


def _note(result: RunResult, scalars: dict[str, float]) -> None:
    for name in (*result.curves, *(name for name in scalars if name not in result.curves)):
        values = result.curves.setdefault(name, [NAN] * result.rounds)
        values.append(scalars.get(name, NAN))
    result.rounds += 1


def _of_clients(module: FederatedRun) -> dict[str, list[float]]:
    journal = module.journal.clients
    return {name: journal[name][1].tolist() for name in _OF_CLIENTS if name in journal}


def _traffic(module: FederatedRun) -> dict[str, float]:
    """Bytes so far, without those of evaluations."""
    found = {"cost/up_bytes": 0.0, "cost/down_bytes": 0.0}
    for row in module.ledger.rows():
        if row["step"] not in _MEASURING:
            found[f"cost/{row['direction']}_bytes"] += row["bytes"]
    return found
