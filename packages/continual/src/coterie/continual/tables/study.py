"""What the tables share: settings for every backbone, runs from the cache or from workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.continual.experiment import Experiment
from coterie.continual.paper import PAPER
from coterie.continual.readings import resolve
from coterie.continual.settings import BackboneName, Method, ModelSettings, Settings
from coterie.continual.tables import references
from coterie.continual.tables.essence import base_settings, essential
from coterie.continual.tables.published import BACKBONES
from coterie.continual.tables.runs import Plan, Probe, RunResult, train_base, train_run
from coterie.core.configuration import Configuration, configure
from coterie.core.runfolder import DEFAULT_OUT
from coterie.core.tables.fingerprint import data_digest, fingerprint
from coterie.core.tables.jobs import Job, Work, run_jobs
from coterie.core.tables.paired import Spread, spread

NAMES = {
    "ft": "FT",
    "reg": "Reg",
    "kd": "KD",
    "rlp2": "RLP2",
    "spp": "SPP",
    "f3crec": "F³CRec",
    "f3crec-wo-cc": "w/o c.c",
    "f3crec-wo-arm": "w/o a.r.m",
    "f3crec-wo-sc": "w/o s.c",
    "f3crec-wo-itm": "w/o i.t.m",
    "popularity": "popularity, all blocks so far",
    "popularity-block": "popularity, this block",
    "central": "centralised MF, all blocks so far",
    "central-stream": "centralised MF, block by block",
}
BACKBONE_NAMES = {"fedmf": "FedMF", "fedncf": "FedNCF", "pfedrec": "PFedRec"}
METRIC_NAMES = {"ndcg": "N", "recall": "R"}
_REFERENCES: dict[str, Work] = {
    "popularity": references.popularity_run,
    "popularity-block": references.recent_popularity_run,
    "central": references.central_run,
    "central-stream": references.central_stream_run,
}


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
        return self.configuration.settings

    @property
    def data(self) -> str:
        """Name of the data set."""
        return self.settings.data.name

    @property
    def slug(self) -> str:
        """The data set in a file name."""
        return re.sub(
            r"[^A-Za-z0-9.-]+", "-", Path(self.data).stem if "/" in self.data else self.data
        )

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
        """Name of the file of "table2" or "figure4", with the backbone that the user names."""
        backbone = f"-{self.backbones[0]}" if len(self.backbones) == 1 else ""
        return f"{which}-{self.slug}{backbone}"

    def tuned(self, backbone: BackboneName) -> Settings:
        """Settings of a backbone: its tuned configuration if there is one, then the user's."""
        if backbone == self.settings.model.name:
            return self.settings
        given = self.configuration.given
        flags = given.flags | {"model.name": backbone}
        return configure(PAPER, replace(given, flags=flags).argv()).settings

    def run_all(
        self,
        title: str,
        variants: Mapping[Any, Settings],
        probe: type[Probe] | None = None,
    ) -> dict[Any, list[RunResult]]:
        """Run every variant with every seed; results in the order of the seeds."""
        jobs = {
            (name, seed): self._job(replace(settings, seed=seed), probe)
            for name, settings in variants.items()
            for seed in self.seeds
        }
        return self._results(title, jobs, variants)

    def methods(
        self,
        title: str,
        settings: Settings,
        methods: Iterable[Method],
        probe: type[Probe] | None = None,
    ) -> dict[str, list[RunResult]]:
        """Run several methods with the same settings."""
        variants = {method: replace(settings, method=method) for method in methods}
        return self.run_all(title, variants, probe)

    def references(self, title: str) -> dict[str, list[RunResult]]:
        """Run popularity and centralised MF, which have no backbone."""
        jobs = {}
        for name, work in _REFERENCES.items():
            for seed in self.seeds:
                settings = self._without_backbone(seed)
                mark = fingerprint(settings, self._digest, name, str(references.CENTRAL))
                path = self._cache / f"{self.slug}-{name}-s{seed}-{mark}.json"
                jobs[name, seed] = Job(path, work, settings, f"{NAMES[name]}, seed {seed}")
        return self._results(title, jobs, _REFERENCES)

    def row(
        self,
        method: str,
        metric: str,
        values: Sequence[float],
        paper: float | None,
        **more: Any,
    ) -> dict[str, Any]:
        """Make a row of the report: mean and spread over seeds, and the paper's value."""
        found: Spread = spread(values)
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

    def _without_backbone(self, seed: int) -> Settings:
        """Keep what references read: data, splits, length of vectors and lists, seed."""
        filled = resolve(self.settings)
        model = ModelSettings(dim=filled.model.dim)
        plain = Settings(seed=seed, top_k=filled.top_k, data=filled.data, model=model)
        return essential(replace(plain, method="ft"))

    def _results(
        self, title: str, jobs: Mapping[tuple[Any, int], Job], names: Iterable[Any]
    ) -> dict[Any, list[RunResult]]:
        run_jobs(list(jobs.values()), self.workers, title, self.settings.run.progress)
        return {
            name: [RunResult.read(jobs[name, seed].path) for seed in self.seeds] for name in names
        }

    def _job(self, settings: Settings, probe: type[Probe] | None) -> Job:
        settings, start = essential(settings), base_settings(settings)
        backbone, seed = settings.model.name, settings.seed
        label = f"{BACKBONE_NAMES[backbone]}, seed {seed}"
        base = Job(
            self._cache / f"{self.slug}-{backbone}-base-s{seed}-{self._mark(start)}.pt",
            train_base,
            start,
            f"base block, {label}",
        )
        mark = self._mark(settings, *([] if probe is None else [probe.__name__]))
        return Job(
            self._cache / f"{self.slug}-{backbone}-{settings.method}-s{seed}-{mark}.json",
            train_run,
            Plan(settings, base.path, probe),
            f"{NAMES[settings.method]}, {label}",
            base,
        )

    def _mark(self, settings: Settings, *more: str) -> str:
        return fingerprint(settings, self._digest, *more)

    @property
    def _cache(self) -> Path:
        return self.folder / "cache"

    @cached_property
    def _digest(self) -> str:
        return data_digest(Experiment(self.settings).interactions)


def averages(results: Sequence[RunResult], metric: str) -> list[float]:
    """Mean over the blocks after the first, one value a seed; ``metric`` as "ndcg@20"."""
    return [result.metrics[f"test/average/{metric}"] for result in results]


def validations(results: Sequence[RunResult]) -> list[float]:
    """Best validation NDCG of a block, mean over the blocks after the first, one value a seed."""
    return [result.metrics["valid/average"] for result in results]
