"""The runs behind a table or figure: which there are, from the cache or from workers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from coterie.core.registry.papers import Paper
from coterie.core.run.runfolder import DEFAULT_OUT
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.configuration import Configuration
from coterie.core.tables.fingerprint import fingerprint
from coterie.core.tables.jobs import Job, run_jobs
from coterie.core.tables.paired import spread
from coterie.core.tables.result import Result

S = TypeVar("S", bound=BaseSettings)
R = TypeVar("R", bound=Result)
K = TypeVar("K")


@dataclass(frozen=True)
class Study(ABC, Generic[S, R]):
    """The runs behind a table or figure; a paper says what `digest` and `job` are.

    Attributes:
        configuration: what the user asked for.
        seeds: of the runs.
        workers: processes; 0 = this one.
        paper: whose runs.
        result: class of what is kept of a run, R.
    """

    configuration: Configuration
    seeds: Sequence[int]
    workers: int

    paper: ClassVar[Paper]
    result: ClassVar[Any]  # a class variable cannot be type[R]

    @property
    @abstractmethod
    def digest(self) -> str:
        """Hash of the data, as `coterie.core.tables.fingerprint.data_digest` makes it."""

    @abstractmethod
    def job(self, settings: S) -> Job:
        """Make a run: settings with effect, file (from `path`), and who writes the result."""

    @property
    def settings(self) -> S:
        """As the user gave them."""
        settings: S = self.configuration.settings
        return settings

    @property
    def data(self) -> str:
        """Name of the data."""
        return self.settings.data.name

    @property
    def slug(self) -> str:
        """The data in a file name."""
        name = Path(self.data).stem if "/" in self.data else self.data
        return re.sub(r"[^A-Za-z0-9.-]+", "-", name)

    @property
    def folder(self) -> Path:
        """Where tables, figures and the cache are."""
        return Path(self.settings.run.out or DEFAULT_OUT).expanduser() / self.paper.name / "tables"

    @property
    def n_seeds(self) -> str:
        """How many seeds, in words."""
        return f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", without an ending."""
        return f"{which}-{self.slug}"

    def path(self, what: str, settings: S, *more: str, suffix: str = "json") -> Path:
        """File of a result in the cache.

        Args:
            what: says for people what it is.
            settings: all that it depends on, with what is not read set to one value.
            more: what else it depends on.
            suffix: ending of the name.
        """
        mark = fingerprint(settings, self.digest, *more)
        return self.folder / "cache" / f"{self.slug}-{what}-{mark}.{suffix}"

    def methods(self, title: str, settings: S, methods: Iterable[str]) -> dict[str, list[R]]:
        """Run several methods with the same settings."""
        return self.run_all(title, {name: replace(settings, method=name) for name in methods})

    def run_all(self, title: str, variants: Mapping[K, S]) -> dict[K, list[R]]:
        """Run every variant with every seed; results in the order of the seeds."""
        return self.results(
            title, variants, lambda name, seed: self.job(replace(variants[name], seed=seed))
        )

    def results(
        self, title: str, names: Iterable[K], job: Callable[[K, int], Job]
    ) -> dict[K, list[R]]:
        """Make what has no variant of the settings; results in the order of the seeds.

        Args:
            title: of the progress display.
            names: of what is made.
            job: makes a named one with a seed.
        """
        jobs = {name: [job(name, seed) for seed in self.seeds] for name in names}
        every = [one for part in jobs.values() for one in part]
        run_jobs(every, self.workers, title, self.settings.run.progress)
        return {name: [self.result.read(one.path) for one in part] for name, part in jobs.items()}

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
