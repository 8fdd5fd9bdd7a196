"""The rows of Table 1 with all data in one place and no language model, on the same users."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from coterie.core.methods.ranking.bpr import CentralResult, train_lightgcn, train_mf
from coterie.core.tensors.keys import Key
from coterie.llm.baselines import all_users, measure_popularity
from coterie.llm.experiment import Experiment
from coterie.llm.quality import LENGTHS, MEASURES
from coterie.llm.settings.run import Settings
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
    began = time.perf_counter()
    result = REFERENCES[plan.name](Experiment(plan.settings))
    result.metrics["seconds"] = time.perf_counter() - began
    result.write(path)


def popularity_run(experiment: Experiment) -> RunResult:
    """Rank by the number of interactions of all users: before validation, or before the test."""
    result = RunResult()
    for split in ("valid", "test"):
        found = measure_popularity(experiment.data, split)
        for name in MEASURES:
            values = [part[name] for part in found]
            result.metrics[f"{split}/{name}"] = float(torch.cat(values).mean())
            result.clients[f"{split}/{name}"] = [float(part.mean()) for part in values]
    return result


def mf_run(experiment: Experiment) -> RunResult:
    """BPR-MF of all users."""
    data, settings = experiment.data, experiment.settings
    users, device = all_users(data), experiment.device
    found = train_mf(settings.mf, users, data.n_items, LENGTHS, _key(settings), device)
    return _of_users(experiment, found)


def lightgcn_run(experiment: Experiment) -> RunResult:
    """LightGCN of all users."""
    data, settings = experiment.data, experiment.settings
    users, device = all_users(data), experiment.device
    found = train_lightgcn(settings.lightgcn, users, data.n_items, LENGTHS, _key(settings), device)
    return _of_users(experiment, found)


REFERENCES: Mapping[str, Callable[[Experiment], RunResult]] = {
    "popularity": popularity_run,
    "mf": mf_run,
    "lightgcn": lightgcn_run,
}


def _of_users(experiment: Experiment, found: CentralResult) -> RunResult:
    """Average the users, over all and by organisation."""
    own = {"valid/recall@10": found.valid, "trained": found.parameters}
    result = RunResult(found.means() | own)
    for name, values in (("recall", found.recall), ("ndcg", found.ndcg)):
        for place, k in enumerate(found.lengths):
            means = organisation_means(experiment.data, found.ids, values[:, place])
            result.clients[f"test/{name}@{k}"] = means
    return result


def _key(settings: Settings) -> Key:
    return Key.from_seed(settings.seed).fold("reference")
