"""What the tables share: which methods and backbones there are, and how each is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

from coterie.continual.experiment import Experiment
from coterie.continual.paper import PAPER
from coterie.continual.readings import resolve
from coterie.continual.settings import BackboneName, ModelSettings, Settings
from coterie.continual.tables import references
from coterie.continual.tables.essence import base_settings, essential
from coterie.continual.tables.runs import Plan, Probe, RunResult, train_base, train_run
from coterie.core.tables.backbones import BackboneStudy
from coterie.core.tables.fingerprint import data_digest
from coterie.core.tables.jobs import Job, Work

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
class Study(BackboneStudy[Settings, RunResult]):
    """The runs behind a table or figure.

    Attributes:
        probe: what is measured during the runs.
    """

    paper = PAPER
    result = RunResult
    all_backbones = get_args(BackboneName)

    probe: type[Probe] | None = None

    def probing(self, probe: type[Probe]) -> Study:
        """Give the study whose runs are measured by a probe."""
        return replace(self, probe=probe)

    def references(self, title: str) -> dict[str, list[RunResult]]:
        """Run popularity and centralised MF, which have no backbone."""
        return self.results(title, _REFERENCES, self._reference)

    def job(self, settings: Settings) -> Job:
        """Make a run that starts from the base block, which all methods share."""
        settings, start = essential(settings), base_settings(settings)
        backbone, seed = settings.model.name, settings.seed
        label = f"{BACKBONE_NAMES[backbone]}, seed {seed}"
        path = self.path(f"{backbone}-base-s{seed}", start, suffix="pt")
        base = Job(path, train_base, start, f"base block, {label}")
        probed = [] if self.probe is None else [self.probe.__name__]
        path = self.path(f"{backbone}-{settings.method}-s{seed}", settings, *probed)
        plan = Plan(settings, base.path, self.probe)
        return Job(path, train_run, plan, f"{NAMES[settings.method]}, {label}", base)

    @cached_property
    def digest(self) -> str:
        """Hash of the data set."""
        return data_digest(Experiment(self.settings).interactions)

    def _reference(self, name: str, seed: int) -> Job:
        settings = self._without_backbone(seed)
        path = self.path(f"{name}-s{seed}", settings, name, str(references.CENTRAL))
        return Job(path, _REFERENCES[name], settings, f"{NAMES[name]}, seed {seed}")

    def _without_backbone(self, seed: int) -> Settings:
        """Keep what references read: data, splits, length of vectors and lists, seed."""
        filled = resolve(self.settings)
        model = ModelSettings(dim=filled.model.dim)
        plain = Settings(seed=seed, top_k=filled.top_k, data=filled.data, model=model)
        return essential(replace(plain, method="ft"))


def averages(results: Sequence[RunResult], metric: str) -> list[float]:
    """Mean over the blocks after the first, one value a seed; ``metric`` as "ndcg@20"."""
    return [result.metrics[f"test/average/{metric}"] for result in results]


def validations(results: Sequence[RunResult]) -> list[float]:
    """Best validation NDCG of a block, mean over the blocks after the first, one value a seed."""
    return [result.metrics["valid/average"] for result in results]
