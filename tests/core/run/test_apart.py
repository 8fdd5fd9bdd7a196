"""Runs taken apart: worker processes that hold card and own folder, a server without data."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hosted import Here, Hosts, TakenApart, bits

from coterie.core.engines.host import ClientHost
from coterie.core.engines.processes import WorkerProcesses
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.apart import EXPECTED, expected, write_server
from coterie.core.run.certify import in_shards
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import build

ROUNDS = 2
SMALL = {"seed": 3, "engine.threads": 1}
PAGE = {"data.clients": 6, "rounds": ROUNDS, "train.epochs": 1}
PPLR = {
    "rounds": ROUNDS,
    "model.width": 8,
    "model.layers": 1,
    "pretrain.steps": 3,
    "data.clients": 2,
    "data.shots": 60,
}
MTAL = {
    "rounds": ROUNDS,
    "data.domains": "uniform",
    "data.count": 3,
    "data.common": 0.7,
    "model.hidden": 8,
    "model.code": 4,
    "train.epochs": 1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "f3crec": ("f3crec", {"model.dim": 4, "rounds": ROUNDS, "participation": 0.5}),
    **{
        name: ("page", PAGE | {"method": name, "train.participation": 0.7})
        for name in ("page", "fedavg", "scaffold", "ditto", "fedamp")
    },
    "pplr": ("pplr", PPLR),
    "fedmf-masks": ("pplr", PPLR | {"method": "fedmf", "fedmf.transport": "masked_sum"}),
    "fedpergnn": ("pplr", PPLR | {"method": "fedpergnn", "fedpergnn.expand_after": 1}),
    "mtal": ("mtal", MTAL),
    "mtal-alone": ("mtal", MTAL | {"method": "alone", "model.name": "ncf"}),
    "f3crec-noise": (
        "f3crec",
        {"method": "ft", "model.dim": 4, "rounds": 1, "privacy.clip": 1.0}
        | {"privacy.noise": "gaussian", "privacy.scale": 0.1},
    ),
    "f3crec-median": (
        "f3crec",
        {"model.dim": 4, "rounds": ROUNDS, "aggregate.rule": "median"},
    ),
    "scaffold-krum": (
        "page",
        PAGE | {"method": "scaffold", "aggregate.rule": "multi-krum", "aggregate.attackers": 0.2},
    ),
    "page-krum": ("page", PAGE | {"aggregate.rule": "multi-krum"}),
    "fedmf-trimmed": ("pplr", PPLR | {"method": "fedmf", "aggregate.rule": "trimmed-mean"}),
    "f3crec-nodes": (
        "f3crec",
        {"model.dim": 4, "rounds": ROUNDS, "aggregate.rule": "median", "aggregate.over": "nodes"},
    ),
    "f3crec-sum-noise": (
        "f3crec",
        {"model.dim": 4, "rounds": ROUNDS, "participation": 0.5, "privacy.clip": 0.1}
        | {"privacy.noise": "gaussian", "privacy.scale": 0.1, "privacy.at": "server"},
    ),
}
REAL = ("f3crec", "page", "pplr", "mtal")


def experiment(name: str, out: Path) -> Any:
    paper, values = CASES[name]
    found = find_paper(paper)
    own = {"run.out": str(out), "logger.wandb": "off"}
    return load(found.experiment)(build(load(found.settings), SMALL | values | own))


def shards_of(ids: torch.Tensor, is_list: bool, real: bool) -> list[torch.Tensor]:
    if real and not is_list:
        return [ids[0::2], ids[1::2]]
    return list(ids.split(1)) if is_list else [ids[0::3], ids[1::3], ids[2::3]]


def rounds(run: FederatedRun, most: int = 4) -> list[dict[str, float]]:
    scalars = []
    while not run.finished and run.round < most:
        run.advance()
        scalars.append(dict(run.journal.scalars))
    return scalars


def measured(found: list[dict[str, float]]) -> list[dict[str, str]]:
    """All digits, NaN as itself; but for local steps, which are counted where they are made."""
    return [{n: repr(v) for n, v in row.items() if n != "cost/local_steps"} for row in found]


def share_one_process(workers: WorkerProcesses, folders: list[Path]) -> None:
    """Only the first folder has a process: its start takes longer than the run."""
    for member, folder in zip(workers.members[1:], folders[1:], strict=True):
        member.node = Here(folder)
    workers._threads = ThreadPoolExecutor(1)  # clients here may draw by the same generator


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_worker_processes_give_the_same_bits(name, tmp_path):
    real = name in REAL  # one of a process, else all by the same code without its start
    given = experiment(name, tmp_path)
    whole = given.federation()
    everybody = torch.cat([data.ids for data in whole.blocks]).unique()
    shards = shards_of(everybody, whole.client.form == "list", real)
    inside = FederatedRun(replace(whole, exchange=in_shards(whole, shards)))
    expected = rounds(inside)

    apart = TakenApart.of(given, tmp_path, shards, whole)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if real:
        options = {"environment": environment, **apart.known}
        workers = WorkerProcesses(apart.folders, "a run", **options)
        share_one_process(workers, apart.folders)
    else:
        workers = Hosts(apart.folders, **apart.known)
    with workers:
        outside = apart.over(workers)
        found = rounds(outside)
    assert measured(found) == measured(expected)
    assert bits(outside.server_state) == bits(inside.server_state)
    assert outside.ledger.rows() == inside.ledger.rows()
    for folder, shard in zip(apart.folders, shards, strict=True):
        enrolled = shard[~torch.isin(shard, inside.store.newcomers(shard))]
        for one in enrolled.split(1) if whole.client.form == "list" else [enrolled]:
            kept = ClientHost(folder).exchange.store.take(one)
            assert bits(kept) == bits(inside.store.take(one))


def test_who_is_expected_is_named_one_by_one_or_as_a_range(tmp_path):
    given = experiment("f3crec", tmp_path)
    whole = given.federation()
    shards = {"clients-0": torch.arange(2, 7), "clients-1": torch.tensor([1, 9, 12])}
    write_server(given, whole, tmp_path / "server", shards)
    path = tmp_path / "server" / EXPECTED
    written = json.loads(path.read_text())
    assert written["clients"] == {"clients-0": {"first": 2, "count": 5}, "clients-1": [1, 9, 12]}
    found = expected(tmp_path / "server")
    assert {name: ids.tolist() for name, ids in found.items()} == {
        name: ids.tolist() for name, ids in shards.items()
    }
    for wrong, why in (
        ({"clients-0": {"first": 1, "count": 5}}, "a client in two folders"),
        ({"clients-0": {"first": 0}}, "must name clients' folders"),
        ({"clients-0": {"first": 0.5, "count": 2}}, "must name clients' folders"),
        ({"clients-0": {"first": 0, "count": -2}}, "must name clients' folders"),
        ({"clients-0": ["one"]}, "must name clients' folders"),
    ):
        path.write_text(json.dumps(written | {"clients": written["clients"] | wrong}))
        with pytest.raises(UserError, match=why):
            expected(tmp_path / "server")
