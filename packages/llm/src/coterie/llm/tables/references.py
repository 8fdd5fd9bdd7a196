"""Runs of what needs no language model: popularity, titles, MF and LightGCN."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from coterie.core.methods.ranking.central import CentralResult, train_lightgcn, train_mf
from coterie.core.metrics.ranking_report import Split
from coterie.core.tables.result import Make, RunResult
from coterie.core.tensors.device import computing_on, moved
from coterie.core.tensors.keys import Key
from coterie.llm.backbone_settings import Whose
from coterie.llm.baselines import all_users
from coterie.llm.client import Organisation
from coterie.llm.experiment import Experiment
from coterie.llm.item_counts import counted_bias
from coterie.llm.own_counts import STRENGTHS, choose_strength, compare, own_counts
from coterie.llm.quality import LENGTHS, MEASURES, measure_each
from coterie.llm.rules import (
    Measured,
    measure_own_popularity,
    measure_popularity,
    title_rule,
)
from coterie.llm.settings import Settings


def popularity_run(settings: Settings) -> RunResult:
    """Rank by the number of interactions of all users: before validation, or before the test."""
    began, data = time.perf_counter(), Experiment(settings).data
    return _untrained(measure_popularity(data, "valid"), measure_popularity(data, "test"), began)


def own_popularity_run(settings: Settings) -> RunResult:
    """Rank by the number of interactions of each client's own users."""
    began, data = time.perf_counter(), Experiment(settings).data
    valid, test = (measure_own_popularity(data, split) for split in ("valid", "test"))
    return _untrained(valid, test, began)


def title_run(counts: Whose | None, settings: Settings) -> RunResult:
    """Rank by `coterie.llm.rules.title_rule`, which validation chooses."""
    began, found = time.perf_counter(), title_rule(Experiment(settings).data, counts)
    return _untrained(found.valid, found.test, began)


def start_run(settings: Settings) -> RunResult:
    """Rank by the model that a run starts from, with what stands beside it, untrained.

    Everybody's counts are those that are known when it is asked; the strength of a client's own is
    chosen as in a run.
    """
    began, experiment = time.perf_counter(), Experiment(settings)
    expert, _ = experiment.settings.expert, experiment.clients  # data are made on the CPU
    strengths: tuple[float, ...] = (0.0,)
    if expert.counts_own:
        strengths = STRENGTHS if expert.own is None else (expert.own,)
    with computing_on(experiment.device):
        client = Organisation(experiment.settings, experiment.backbone)
        valid = _measured(experiment, client, "valid", strengths)
        clients = [compare([one["recall@10"] for one in each]) for each in zip(*valid, strict=True)]
        best = strengths.index(choose_strength(clients, strengths))
        (test,) = _measured(experiment, client, "test", (strengths[best],))
    return _untrained(valid[best], test, began)


def _measured(
    experiment: Experiment, client: Organisation, split: Split, strengths: Sequence[float]
) -> list[list[dict[str, Tensor]]]:
    """Measure every client with each strength of its own counts."""
    settings, data, backbone = experiment.settings, experiment.data, experiment.backbone
    row, n_items, of_all = client.start, data.n_items, settings.expert.of_all
    bias = counted_bias(settings, client.adapter, data.catalogue)
    if bias is not None and of_all is not None:
        (row,) = bias.moved(row[None], bias.public, moved(data.counts(of_all, split), row.device))
    scale = settings.expert.scale
    by_client = []
    for place in range(len(experiment.clients)):
        own = moved(experiment.clients[place], experiment.device)
        client.load(row)
        counted = own_counts(own, split, n_items)
        by_client.append(
            measure_each(
                lambda part: backbone.scores(part.history),
                [scale * strength * counted for strength in strengths],
                own.test if split == "test" else own.valid,
            )
        )
    return [list(measured) for measured in zip(*by_client, strict=True)]


def _untrained(valid: Measured, test: Measured, began: float) -> RunResult:
    """Average what was measured of every organisation, over all users and by organisation."""
    result = RunResult()
    for split, found in (("valid", valid), ("test", test)):
        for name in MEASURES:
            values = [part[name] for part in found]
            result.metrics[f"{split}/{name}"] = float(torch.cat(values).mean())
            result.clients[f"{split}/{name}"] = [float(part.mean()) for part in values]
    result.metrics["seconds"] = time.perf_counter() - began
    return result


def _of_users(name: str, settings: Settings) -> RunResult:
    """Train MF or LightGCN on all users; average them, over all and by organisation."""
    began, experiment = time.perf_counter(), Experiment(settings)
    data = experiment.data
    key = Key.from_seed(settings.seed).fold("reference")
    train: Callable[..., CentralResult] = train_mf if name == "mf" else train_lightgcn
    users, own = all_users(data), getattr(settings, name)
    found = train(own, users, data.n_items, LENGTHS, key, device=experiment.device)
    more = {"valid/recall@10": found.valid, "trained": found.parameters}
    result = RunResult(found.means() | more)
    for measure, values in (("recall", found.recall), ("ndcg", found.ndcg)):
        for place, k in enumerate(found.lengths):
            means = data.means(data.client_of[found.ids], values[:, place])
            result.clients[f"test/{measure}@{k}"] = means.tolist()
    result.metrics["seconds"] = time.perf_counter() - began
    return result


REFERENCES: Mapping[str, Make] = {
    "popularity": popularity_run,
    "own-popularity": own_popularity_run,
    "titles-alone": partial(title_run, None),
    "titles": partial(title_run, "public"),
    "titles-all": partial(title_run, "everybody"),
    "titles-own": partial(title_run, "own"),
    "mf": partial(_of_users, "mf"),
    "lightgcn": partial(_of_users, "lightgcn"),
}
