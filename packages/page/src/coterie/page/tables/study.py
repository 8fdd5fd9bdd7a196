"""What the tables share: which methods there are, runs from the cache or from workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

from coterie.core.configuration import Configuration
from coterie.core.errors import UserError
from coterie.core.runfolder import DEFAULT_OUT
from coterie.core.tables.fingerprint import fingerprint
from coterie.core.tables.jobs import Job, run_jobs
from coterie.core.tables.paired import spread
from coterie.page.experiment import Experiment
from coterie.page.models.names import OF_TASK
from coterie.page.settings import DEMONSTRATION, Method, Settings
from coterie.page.tables.essence import digest, essential
from coterie.page.tables.references import MAJORITY, majority_job
from coterie.page.tables.runs import RunResult, train_run

Results = Mapping[str, Sequence[RunResult]]

NAMES = {
    "local": "local only",
    "central": "central",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "dap-fl": "Dap-FL",
    "fedrecon": "FedRECON",
    "pfedme": "pFedMe",
    "ditto": "Ditto",
    "fedala": "FedALA",
    "fed-rod": "Fed-ROD",
    "fedamp": "FedAMP",
    "page": "PAGE",
}
ROUNDS = 1000
OWN = "page"
BOUNDS = ("local", "central")
TRADITIONAL = ("fedavg", "fedprox", "scaffold", "feddyn", "dap-fl")
PERSONALISED = ("fedrecon", "pfedme", "ditto", "fedala", "fed-rod", "fedamp")
_NEEDS_BODY = {"fedrecon"}


@dataclass(frozen=True)
class Study:
    """The runs behind a table or figure.

    Attributes:
        configuration: what the user asked for.
        seeds: of the runs.
        workers: processes; 0 = this one.
    """

    configuration: Configuration
    seeds: Sequence[int]
    workers: int

    @cached_property
    def settings(self) -> Settings:
        """As the user gave them, with as many rounds as the public code plays if nobody says."""
        settings: Settings = self.configuration.settings
        given = self.configuration.given
        said = "rounds" in given.flags or given.preset or given.configs
        if said or settings.rounds != DEMONSTRATION:
            return settings
        return replace(settings, rounds=ROUNDS)

    @property
    def data(self) -> str:
        """Name of the task."""
        return self.settings.data.name

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.settings.model.name or OF_TASK.get(self.data, "softmax")

    @property
    def folder(self) -> Path:
        """Where tables, figures and the cache are."""
        return Path(self.settings.run.out or DEFAULT_OUT).expanduser() / "page" / "tables"

    @cached_property
    def n_clients(self) -> int:
        """N."""
        return len(self._task.clients)

    def check(self) -> None:
        """Refuse settings that leave nothing to show.

        Raises:
            UserError: no seed.
        """
        if not self.seeds:
            raise UserError("a table needs a seed: give --seeds a number above 0")

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the choices that it depends on."""
        words = [which, self.data]
        if self.settings.model.name not in (None, OF_TASK.get(self.data)):
            words.append(self.network)
        if self.settings.reading != "recommended":
            words.append(self.settings.reading)
        return "-".join(words)

    def present(self, names: Iterable[str]) -> list[str]:
        """Those of the methods that there are and that the network allows."""
        without_body = self.network == "softmax"
        return [
            name
            for name in names
            if name in get_args(Method) and not (without_body and name in _NEEDS_BODY)
        ]

    @property
    def federated(self) -> list[str]:
        """Every federated method: those of the paper in its order, further ones, and PAGE."""
        known = (*TRADITIONAL, *PERSONALISED)
        more = [name for name in get_args(Method) if name not in (*known, *BOUNDS, OWN)]
        return self.present((*known, *more, OWN))

    def run_all(self, title: str, variants: Mapping[Any, Settings]) -> dict[Any, list[RunResult]]:
        """Run every variant with every seed; results in the order of the seeds."""
        jobs = {
            (name, seed): self._job(replace(settings, seed=seed))
            for name, settings in variants.items()
            for seed in self.seeds
        }
        run_jobs(list(jobs.values()), self.workers, title, self.settings.run.progress)
        return {
            name: [RunResult.read(jobs[name, seed].path) for seed in self.seeds]
            for name in variants
        }

    def methods(self, title: str, names: Iterable[str]) -> dict[str, list[RunResult]]:
        """Run several methods with the study's settings."""
        variants = {name: self.variant(name) for name in names}
        return self.run_all(title, variants)

    def majority(self, title: str) -> list[RunResult]:
        """The trivial baseline of every seed."""
        jobs = []
        for seed in self.seeds:
            settings = essential(replace(self.variant("fedavg"), seed=seed))
            mark = fingerprint(settings, self._digest, MAJORITY)
            path = self.folder / "cache" / f"{self.data}-majority-s{seed}-{mark}.json"
            jobs.append(majority_job(settings, path))
        run_jobs(jobs, self.workers, title, self.settings.run.progress)
        return [RunResult.read(job.path) for job in jobs]

    def variant(self, method: str = OWN, **data: Any) -> Settings:
        """The study's settings with another method, and changes in the section ``data``."""
        settings = replace(self.settings, method=cast(Method, method))
        return replace(settings, data=replace(settings.data, **data))

    def row(
        self, method: str, metric: str, values: Sequence[float], paper: float | None, **more: Any
    ) -> dict[str, Any]:
        """Make a row of the report: mean and spread over seeds, and the paper's value."""
        found = spread(values)
        return {
            "method": method,
            "data": self.data,
            "metric": metric,
            "mean": found.mean,
            "sd": found.sd,
            "seeds": found.n,
            "paper": paper,
            **more,
        }

    def _job(self, settings: Settings) -> Job:
        settings = essential(settings)
        mark = fingerprint(settings, self._digest)
        path = self.folder / "cache" / f"{self.data}-{settings.method}-s{settings.seed}-{mark}.json"
        return Job(path, train_run, settings, f"{name_of(settings.method)}, seed {settings.seed}")

    @cached_property
    def _task(self) -> Any:
        return Experiment(self.settings).task

    @cached_property
    def _digest(self) -> str:
        return digest(self._task)


def name_of(method: str) -> str:
    """The method as papers write it."""
    return NAMES.get(method, method)


def at_best(results: Sequence[RunResult], name: str) -> list[float]:
    """A number of each run's best round, one value a seed."""
    return [result.best(name) for result in results]
