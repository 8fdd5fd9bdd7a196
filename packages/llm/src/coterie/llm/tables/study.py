"""What the tables share: settings for every backbone, runs from the cache or from workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

from coterie.core.configuration import Configuration, configure
from coterie.core.runfolder import DEFAULT_OUT
from coterie.core.tables.fingerprint import fingerprint
from coterie.core.tables.jobs import Job, run_jobs
from coterie.core.tables.paired import spread
from coterie.llm.paper import PAPER
from coterie.llm.settings import BackboneName, Method, Settings
from coterie.llm.tables.essence import digest, essential, plain
from coterie.llm.tables.references import REFERENCES, ReferencePlan, reference_run
from coterie.llm.tables.runs import RunResult, train_run

Results = Mapping[str, Sequence[RunResult]]

NAMES = {
    "popularity": "popularity",
    "mf": "MF",
    "lightgcn": "LightGCN",
    "fedmf": "FedMF",
    "lightfr": "LightFR",
    "fedpergnn": "FedPerGNN",
    "central": "central",
    "fedavg": "+FedAvg",
    "fedprox": "+FedProx",
    "local": "+local only",
    "pplr": "+PPLR",
    "pplr-attention": "+attention only",
    "pplr-heating": "+warm-up only",
}
# The rows of Table 1 without a language model, in its order.
WITHOUT_BACKBONE = ("popularity", "mf", "lightgcn", "fedmf", "lightfr", "fedpergnn")
BACKBONES: tuple[BackboneName, ...] = tuple(
    name for name in ("tiny-item", "tiny-text", "recformer") if name in get_args(BackboneName)
)


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

    @property
    def settings(self) -> Settings:
        """As the user gave them, for the chosen backbone."""
        settings: Settings = self.configuration.settings
        return settings

    @property
    def data(self) -> str:
        """Name of the data set."""
        return self.settings.data.name

    @property
    def folder(self) -> Path:
        """Where tables, figures and the cache are."""
        return Path(self.settings.run.out or DEFAULT_OUT).expanduser() / PAPER.name / "tables"

    @property
    def backbones(self) -> tuple[BackboneName, ...]:
        """The backbone that the user names, or all."""
        if "model.name" in self.configuration.given.flags:
            return (self.settings.model.name,)
        return BACKBONES

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure4", with the backbone that the user names."""
        backbone = f"-{self.backbones[0]}" if len(self.backbones) == 1 else ""
        return f"{which}-{self._slug}{backbone}"

    def tuned(self, backbone: BackboneName) -> Settings:
        """Settings of a backbone: its tuned configuration if there is one, then the user's."""
        if backbone == self.settings.model.name:
            return self.settings
        given = self.configuration.given
        flags = given.flags | {"model.name": backbone}
        found: Settings = configure(PAPER, replace(given, flags=flags).argv()).settings
        return found

    def run_all(self, title: str, variants: Mapping[Any, Settings]) -> dict[Any, list[RunResult]]:
        """Run every variant with every seed; results in the order of the seeds."""
        jobs = {
            (name, seed): self._job(replace(settings, seed=seed))
            for name, settings in variants.items()
            for seed in self.seeds
        }
        return self._results(title, jobs, variants)

    def methods(
        self, title: str, settings: Settings, methods: Iterable[Method]
    ) -> dict[str, list[RunResult]]:
        """Run several methods with the same settings."""
        return self.run_all(title, {name: replace(settings, method=name) for name in methods})

    def without_backbone(self, title: str, names: Iterable[str]) -> Results:
        """Run methods without a language model, as the tuned backbone's configuration has them."""
        chosen = list(names)
        jobs = {
            (name, seed): self._reference(name, seed)
            if name in REFERENCES
            else self._job(replace(self.settings, method=cast(Method, name), seed=seed))
            for name in chosen
            for seed in self.seeds
        }
        return self._results(title, jobs, chosen)

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

    def _results(
        self, title: str, jobs: Mapping[tuple[Any, int], Job], names: Iterable[Any]
    ) -> dict[Any, list[RunResult]]:
        run_jobs(list(jobs.values()), self.workers, title, self.settings.run.progress)
        return {
            name: [RunResult.read(jobs[name, seed].path) for seed in self.seeds] for name in names
        }

    def _job(self, settings: Settings) -> Job:
        settings = essential(settings)
        backbone = "" if settings.method in WITHOUT_BACKBONE else f"{settings.model.name}-"
        path = self._path(f"{backbone}{settings.method}-s{settings.seed}", settings)
        label = f"{backbone}{NAMES[settings.method].lstrip('+')}, seed {settings.seed}"
        return Job(path, train_run, settings, label)

    def _reference(self, name: str, seed: int) -> Job:
        settings = plain(replace(self.settings, seed=seed), name)
        path = self._path(f"{name}-s{seed}", settings, name)
        return Job(
            path, reference_run, ReferencePlan(name, settings), f"{NAMES[name]}, seed {seed}"
        )

    def _path(self, what: str, settings: Settings, *more: str) -> Path:
        mark = fingerprint(settings, self._digest, *more)
        return self._cache / f"{self._slug}-{what}-{mark}.json"

    @property
    def _cache(self) -> Path:
        return self.folder / "cache"

    @property
    def _slug(self) -> str:
        name = Path(self.data).stem if "/" in self.data else self.data
        return re.sub(r"[^A-Za-z0-9.-]+", "-", name)

    @cached_property
    def _digest(self) -> str:
        return digest(self.settings)


def column(results: Sequence[RunResult], metric: str) -> list[float]:
    """A metric over all users, one value a seed; NaN where a run has none."""
    return [result.metrics.get(metric, float("nan")) for result in results]


def imbalances(results: Sequence[RunResult], split: str = "test") -> list[float]:
    """Imbalance degree, one value a seed; infinite where only the worst client finds nothing."""
    return [result.imbalance(split) for result in results]


def of_client(results: Sequence[RunResult], client: int) -> list[float]:
    """Recall@10 of a client on the test, one value a seed."""
    return [result.clients["test/recall@10"][client] for result in results]
