"""Scenarios in processes of their own, which hold the card and their own samples alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hosted import Hosts, TakenApart, bits

from coterie.core.engines.host import ClientHost
from coterie.core.engines.processes import WorkerProcesses
from coterie.core.run.apart import write_folders
from coterie.core.run.certify import InShards
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import build
from coterie.msmt.experiment import Experiment
from coterie.msmt.settings import Settings

SMALL: dict[str, Any] = {
    "seed": 3,
    "rounds": 2,
    "data.name": "world",
    "data.rows": (13, 8),
    "data.valid_rows": 9,
    "data.test_rows": 9,
    "model.embedding": 2,
    "model.experts": 2,
    "model.expert_layers": (4, 3),
    "model.tower_layers": (3,),
    "model.dropout": 0.3,
    "train.batch_size": 8,
    "logger.wandb": "off",
}
CASES: dict[str, dict[str, Any]] = {
    "usual": {},
    "own, literal": {
        **{"pf.centre": "own", "pf.upload": "factored", "train.participation": 0.7},
        **{"reading": "literal", "pf.share": ("experts",)},
    },
    "fedavg": {"method": "fedavg", "model.name": "mmoe", "privacy.clip": 0.001},
    "ditto": {"method": "ditto", "train.share": ("inputs.*",)},
    "ensemble": {"method": "ensemble", "model.name": "esmm", "ensemble.epochs": 1},
    "ensemble, control": {"method": "ensemble", "ensemble.partner": "local"},
}


def experiment(changes: dict[str, Any], out: Path) -> Experiment:
    return Experiment(build(Settings, SMALL | changes | {"run.out": str(out)}))


def rounds(run: FederatedRun) -> list[dict[str, str]]:
    """What is measured in all rounds, all digits, but for local steps, counted where they are."""
    found = []
    while not run.finished:
        run.advance()
        scalars = run.journal.scalars
        found.append({n: repr(v) for n, v in scalars.items() if n != "cost/local_steps"})
    return found


@pytest.mark.long
@pytest.mark.parametrize("case", ["usual!", *list(CASES)[1:]])
def test_a_scenario_in_a_process_of_its_own_gives_the_same_bits(tmp_path: Path, case: str) -> None:
    given = experiment(CASES[case.rstrip("!")], tmp_path)
    whole = given.federation()
    everybody = whole.blocks[0].ids
    shards = list(everybody.split(1))
    inside = FederatedRun(whole)
    inside.exchange = InShards(
        whole.client, whole.blocks, inside.secret.fold, None, whole.middleware, shards=shards
    )
    expected = rounds(inside)

    apart = TakenApart.of(given, tmp_path, shards, whole)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if case.endswith("!"):  # with processes, else the same code without their start
        options = {"environment": environment, **apart.known}
        workers = WorkerProcesses(apart.folders, "a run", **options)
    else:
        workers = Hosts(apart.folders, **apart.known)
    with workers:
        outside = apart.over(workers)
        assert rounds(outside) == expected
    assert bits(outside.server_state) == bits(inside.server_state)
    assert outside.ledger.rows() == inside.ledger.rows()
    for folder, one in zip(apart.folders, shards, strict=True):
        kept = ClientHost(folder).exchange.store.take(one)
        assert bits(kept) == bits(inside.store.take(one))
        assert any(path.startswith("statistics.") for path in bits(kept))
        assert any("optimizer.moments" in path for path in bits(kept))


def test_a_scenarios_process_imports_no_server() -> None:
    code = (
        "import sys; import coterie.msmt.methods, coterie.msmt.client; "
        "print([name for name in ('coterie.msmt.algorithm', 'coterie.msmt.experiment', "
        "'lightning', 'coterie.msmt.data.make', 'pandas', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_folders_hold_nobody_elses_samples(tmp_path: Path) -> None:
    given = experiment({}, tmp_path)
    data = given.task.clients
    shards = list(data.ids.split(1))
    for j, folder in enumerate(
        write_folders(given, given.federation(), tmp_path / "clients", shards)
    ):
        held = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
        for other in range(2):
            numbers = data.train.take(torch.tensor([other])).samples["numbers"]
            row = numbers[0].contiguous().numpy().tobytes()
            assert (row in held) == (other == j)
