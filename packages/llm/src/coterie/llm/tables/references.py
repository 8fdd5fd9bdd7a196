"""The rows of Table 1 without a language model, on the same users, organisations and split."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.baselines.popularity import popularity
from coterie.core.client import Client
from coterie.core.federation import Federation
from coterie.core.rounds import FederatedModule
from coterie.core.seeding import Key
from coterie.core.server import Server
from coterie.llm.baselines.fedmf_server import fedmf
from coterie.llm.baselines.lightfr_server import lightfr
from coterie.llm.baselines.settings import FedMFSettings, LightFRSettings
from coterie.llm.data.client_data import FederatedData
from coterie.llm.data.examples import Queries
from coterie.llm.experiment import Experiment
from coterie.llm.quality import LENGTHS, MEASURES, measure_users
from coterie.llm.settings import Settings
from coterie.llm.tables.runs import RunResult, note_end

Halves = tuple[Server[Any], Client[Any]]


@dataclass(frozen=True)
class Reference:
    """A row of Table 1.

    Attributes:
        label: as printed.
        run: makes it; takes the experiment and ``settings``.
        settings: of the method; a part of the fingerprint.
    """

    label: str
    run: Callable[[Experiment, Any], RunResult]
    settings: Any = None


@dataclass(frozen=True)
class ReferencePlan:
    """A run to be made by a worker.

    Attributes:
        name: in `REFERENCES`.
        settings: of data and seed.
    """

    name: str
    settings: Settings


def reference_run(plan: ReferencePlan, path: Path) -> None:
    """Make a run and write its `RunResult`."""
    reference = REFERENCES[plan.name]
    began = time.perf_counter()
    result = reference.run(Experiment(plan.settings), reference.settings)
    result.metrics["seconds"] = time.perf_counter() - began
    result.write(path)


def popularity_run(experiment: Experiment, _: None) -> RunResult:
    """Rank by the number of training interactions of all users, the public ones included."""
    data, result = experiment.data, RunResult()
    counts = popularity(data.split.train, data.n_items)

    def score(part: Queries) -> Tensor:
        return counts.expand(len(part), -1)

    for split, parts in (("test", data.clients.test), ("valid", data.clients.valid)):
        found = [measure_users(score, queries) for queries in parts]
        for name in MEASURES:
            values = [part[name] for part in found]
            result.metrics[f"{split}/{name}"] = float(torch.cat(values).mean())
            result.clients[f"{split}/{name}"] = [float(part.mean()) for part in values]
    return result


def fedmf_run(experiment: Experiment, settings: FedMFSettings) -> RunResult:
    """FedMF, a user a client."""
    secret = Key.from_seed(experiment.settings.seed).fold("fedmf")
    n_items = experiment.data.n_items
    halves = fedmf(settings, n_items, LENGTHS, secret)
    return _federated(experiment, halves, settings.dim * (n_items + 1))


def lightfr_run(experiment: Experiment, settings: LightFRSettings) -> RunResult:
    """LightFR, a user a client."""
    n_items = experiment.data.n_items
    return _federated(
        experiment, lightfr(settings, n_items, LENGTHS), settings.bits * (n_items + 1)
    )


REFERENCES: Mapping[str, Reference] = {
    "popularity": Reference("popularity", popularity_run),
    "fedmf": Reference("FedMF", fedmf_run, FedMFSettings()),
    "lightfr": Reference("LightFR", lightfr_run, LightFRSettings()),
}
"""In the order of Table 1."""


def _federated(experiment: Experiment, halves: Halves, trained: int) -> RunResult:
    """Run a federation whose clients are users; average them by organisation."""
    data, settings = experiment.data, experiment.settings
    blocks = [data.users()]
    federation = Federation(*halves, blocks, seed=settings.seed, chunk=settings.engine.chunk)
    module, result = FederatedModule(federation), RunResult()
    course: list[list[float]] = []
    while not module.finished:
        module.advance()
        course.append(organisation_means(data, *module.journal.clients["eval/recall@10"]))
    result.course["eval/recall@10"] = course
    result.metrics["trained"] = trained
    note_end(result, module)
    for name in MEASURES:
        measured = module.client_results[f"test/{name}"]
        result.clients[f"test/{name}"] = organisation_means(data, *measured)
    best = int(result.metrics["best_round"])
    if best:
        result.clients["valid/recall@10"] = course[best - 1]
    return result


def organisation_means(data: FederatedData, users: Tensor, values: Tensor) -> list[float]:
    """Average the users of each of K organisations; NaN where none has a value.

    Args:
        data: tells whose user is whose.
        users: ``(n,)`` user numbers.
        values: ``(n,)`` of theirs; NaN for a user without something to find.
    """
    client, known = data.client_of[users], ~values.isnan()
    total = torch.zeros(len(data.clients), dtype=torch.float64)
    count = torch.zeros_like(total)
    total.index_add_(0, client[known], values[known].double())
    count.index_add_(0, client[known], torch.ones_like(values[known].double()))
    return (total / count).tolist()
