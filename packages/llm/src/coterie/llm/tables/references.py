"""The rows of Table 1 with all data in one place and no language model, on the same users."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

from coterie.core.methods.ranking.bpr import CentralResult, train_lightgcn, train_mf
from coterie.core.tables.result import Make, RunResult
from coterie.core.tensors.keys import Key
from coterie.llm.baselines import all_users, measure_popularity
from coterie.llm.experiment import Experiment
from coterie.llm.quality import LENGTHS, MEASURES
from coterie.llm.settings.run import Settings


def popularity_run(settings: Settings) -> RunResult:
    """Rank by the number of interactions of all users: before validation, or before the test."""
    result, began = RunResult(), time.perf_counter()
    experiment = Experiment(settings)
    for split in ("valid", "test"):
        found = measure_popularity(experiment.data, split)
        for name in MEASURES:
            values = [part[name] for part in found]
            result.metrics[f"{split}/{name}"] = float(torch.cat(values).mean())
            result.clients[f"{split}/{name}"] = [float(part.mean()) for part in values]
    result.metrics["seconds"] = time.perf_counter() - began
    return result


def mf_run(settings: Settings) -> RunResult:
    """BPR-MF of all users."""
    return _of_users(settings, partial(train_mf, settings.mf))


def lightgcn_run(settings: Settings) -> RunResult:
    """LightGCN of all users."""
    return _of_users(settings, partial(train_lightgcn, settings.lightgcn))


REFERENCES: Mapping[str, Make] = {
    "popularity": popularity_run,
    "mf": mf_run,
    "lightgcn": lightgcn_run,
}


def _of_users(settings: Settings, train: Callable[..., CentralResult]) -> RunResult:
    """Train on all users; average them, over all and by organisation."""
    began, experiment = time.perf_counter(), Experiment(settings)
    data = experiment.data
    key = Key.from_seed(settings.seed).fold("reference")
    found = train(all_users(data), data.n_items, LENGTHS, key, device=experiment.device)
    own = {"valid/recall@10": found.valid, "trained": found.parameters}
    result = RunResult(found.means() | own)
    for name, values in (("recall", found.recall), ("ndcg", found.ndcg)):
        for place, k in enumerate(found.lengths):
            means = data.means(data.client_of[found.ids], values[:, place])
            result.clients[f"test/{name}@{k}"] = means.tolist()
    result.metrics["seconds"] = time.perf_counter() - began
    return result
