"""A few scenarios with two tasks, small enough for loops, and federations of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.federation import Federation
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import build
from coterie.core.tensors.keys import Key
from coterie.msmt.algorithm import PFServer
from coterie.msmt.client import PFClient
from coterie.msmt.data.task import Schema, Task
from coterie.msmt.experiment import halves
from coterie.msmt.messages import ScenarioUpdate
from coterie.msmt.models.make import network
from coterie.msmt.readings import resolve
from coterie.msmt.settings import Settings

QUIET = {"train.evaluate_every": 9}
"""Measures nothing in the first rounds, which takes half of the time."""
LENGTHS = (11, 9, 5)
SEED = 5
VOCABULARIES, NUMBERS = (3, 6), 2
SMALL: dict[str, Any] = {
    "rounds": 3,
    "model.embedding": 3,
    "model.experts": 2,
    "model.expert_layers": (5, 4),
    "model.tower_layers": (4, 3),
    "model.dropout": 0.0,
    "train.batch_size": 5,
    "train.lr": 0.02,
    "train.weight_decay": 0.001,
    "engine.dtype": "float64",
}
"""Of 11 samples in batches of 5 the last one joins a batch of 6; batches of 2 have hardly a
gradient behind their normalisation, whose noise Adam makes as large as any other."""


def samples(j: int, n: int, part: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """What scenario j holds in a part; whether it clicks depends on what is common to all."""
    key = Key.from_seed(SEED).fold("samples", part, j)
    uniform = key.fold("ids").uniform(n, len(VOCABULARIES), dtype=torch.float64)
    ids = (uniform * torch.tensor(VOCABULARIES)).to(torch.int32)
    numbers = key.fold("numbers").normal(n, NUMBERS, dtype=torch.float64)
    score = numbers[:, 0] + 0.4 * ids[:, 1] - 1 + 0.2 * j
    score = score + 0.3 * key.fold("noise").normal(n, dtype=torch.float64)
    labels = torch.stack([score > 0, score > 0.6], 1).to(torch.uint8)
    scenario = torch.full((n,), j)
    return {"ids": ids, "numbers": numbers.to(dtype), "scenario": scenario, "labels": labels}


def scenarios(
    lengths: Sequence[int] = LENGTHS,
    dtype: torch.dtype = torch.float64,
    alike: bool = False,
) -> Task:
    """Scenarios with so many training samples, and 20 to validate and to test each.

    Args:
        lengths: of the training samples.
        dtype: of the numbers.
        alike: whether all hold the samples of the first.
    """
    parts = {}
    for part in ("train", "valid", "test"):
        counts = lengths if part == "train" else [20] * len(lengths)
        parts[part] = SampleData.from_clients(
            [samples(0 if alike else j, n, part, dtype) for j, n in enumerate(counts)]
        )
    names = tuple(f"s{j}" for j in range(len(lengths)))
    schema = Schema(("ctr", "ctcvr"), names, VOCABULARIES, NUMBERS, funnel=True)
    return Task("small", schema, SplitSamples(**parts))


def settings(*changes: Mapping[str, Any], **more: Any) -> Settings:
    """Settings of a small run; keys are whole ones, as ``pf.c``, with ``__`` for a point."""
    found = dict(SMALL)
    for one in changes:
        found |= one
    named = {name.replace("__", "."): value for name, value in more.items()}
    return resolve(build(Settings, found | named))


def federation(chosen: Settings, task: Task, chunk: int | None = None) -> Federation:
    """Both halves and the data of a run."""
    server, client = halves(chosen, network(chosen, task.schema), task)
    return Federation(
        server=server,
        client=client,
        blocks=[task.clients],
        seed=SEED,
        rounds=chosen.rounds,
        chunk=chunk,
        monitor=server.monitor,
    )


def run_of(
    chosen: Settings, task: Task | None = None, rounds: int | None = None, chunk: int | None = None
) -> FederatedRun:
    """Run some rounds, by default all."""
    run = FederatedRun(federation(chosen, task or scenarios(), chunk))
    return advanced(run, chosen.rounds if rounds is None else rounds)


def advanced(run: FederatedRun, rounds: int) -> FederatedRun:
    """Go on for some rounds."""
    for _ in range(rounds):
        run.advance()
    return run


def opened(chosen: Settings, task: Task | None = None) -> FederatedRun:
    """A run whose scenarios have their first network, and have not trained."""
    run = run_of(chosen, task, rounds=0)
    run._open_block()
    return run


def uploads(run: FederatedRun) -> ScenarioUpdate:
    """What all scenarios will upload in the next round, if all are asked, stacked."""
    ids, number = run.newest_data.ids, run.block_round + 1
    key = run.secret.fold(ids).fold("update", 0, number, 0)
    server = run.federation.server
    assert isinstance(server, PFServer)
    down = server.request(run.server_state)
    up, _ = client_of(run).update(down, kept(run), run.newest_data, key)
    return up


def kept(run: FederatedRun) -> Any:
    """Private state of all scenarios, stacked."""
    return run.store.take(run.newest_data.ids)


def client_of(run: FederatedRun) -> PFClient:
    """The client half of PF-MSMTrec."""
    client = run.federation.client
    assert isinstance(client, PFClient)
    return client


def with_samples(task: Task, train: SampleData) -> Task:
    """The same scenarios with other training samples."""
    return replace(task, clients=replace(task.clients, train=train))
