"""The rows of Table 1 with all data in one place and no language model, on the same users."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.core.seeding import Key
from coterie.llm.baselines.central import (
    CentralResult,
    popularity_scores,
    train_lightgcn,
    train_mf,
)
from coterie.llm.baselines.federation import all_users
from coterie.llm.experiment import Experiment
from coterie.llm.quality import LENGTHS
from coterie.llm.settings import Settings
from coterie.llm.tables.runs import RunResult, organisation_means


@dataclass(frozen=True)
class ReferencePlan:
    """A run to be made by a worker.

    Attributes:
        name: in `REFERENCES`.
        settings: of the run.
    """

    name: str
    settings: Settings


def reference_run(plan: ReferencePlan, path: Path) -> None:
    """Make a run and write its `RunResult`."""
    experiment = Experiment(plan.settings)
    began = time.perf_counter()
    found = REFERENCES[plan.name](experiment)
    result = RunResult(found.means())
    result.metrics["valid/recall@10"] = found.valid
    result.metrics["seconds"] = time.perf_counter() - began
    if found.parameters:
        result.metrics["trained"] = found.parameters
    for name, values in (("recall", found.recall), ("ndcg", found.ndcg)):
        for place, k in enumerate(found.lengths):
            means = organisation_means(experiment.data, found.ids, values[:, place])
            result.clients[f"test/{name}@{k}"] = means
    result.write(path)


def popularity_run(experiment: Experiment) -> CentralResult:
    """Rank by the number of interactions before the test."""
    data = experiment.data
    return popularity_scores(all_users(data), data.n_items, LENGTHS)


def mf_run(experiment: Experiment) -> CentralResult:
    """BPR-MF of all users."""
    data, settings = experiment.data, experiment.settings
    return train_mf(settings.mf, all_users(data), data.n_items, LENGTHS, _key(settings))


def lightgcn_run(experiment: Experiment) -> CentralResult:
    """LightGCN of all users."""
    data, settings = experiment.data, experiment.settings
    return train_lightgcn(settings.lightgcn, all_users(data), data.n_items, LENGTHS, _key(settings))


REFERENCES: Mapping[str, Callable[[Experiment], CentralResult]] = {
    "popularity": popularity_run,
    "mf": mf_run,
    "lightgcn": lightgcn_run,
}


def _key(settings: Settings) -> Key:
    return Key.from_seed(settings.seed).fold("reference")
