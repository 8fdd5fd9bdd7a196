"""A run that is killed between two asks of a round, and goes on to the same bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.assisted.ratings_file import write_ratings

from coterie.core.cli.main import main
from coterie.core.run.serving import open_run
from coterie.core.tensors import tree

pytestmark = pytest.mark.long

WORDS = ["train", "mtal", "--rounds", "2", "--train.epochs", "1", "--model.hidden", "8"]
WORDS += ["--model.code", "4", "--data.domains", "uniform", "--data.count", "3"]
WORDS += ["--logger.wandb", "off", "--logger.transcript", "true", "--run.progress", "false"]
ASSISTED, APART = "coterie.assisted.client:Organisation", "coterie.assisted.apart:Apart"
RECEIVING = "coterie.assisted.receiver:Receiver"
ALONE = ["--method", "alone", "--model.name", "mf"]
ONCE = ["--method", "residuals", "--model.name", "autorec", "--model.members", "2"]


def bits(run: Path) -> list[tuple[str, object]]:
    """All that server and organisations hold after the run, the models of all rounds included."""
    module = open_run(run)[1]
    state = {"server": module.server_state, "parties": module.store.to_plain()}
    return [
        (path, leaf.numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf))
        for path, leaf in tree.leaves(state)
    ]


def summary(run: Path) -> dict[str, object]:
    found = json.loads((run / "summary.json").read_text())
    return {name: found[name] for name in ("metrics", "up_bytes", "down_bytes", "rounds")}


CASES = {
    "residual": (ASSISTED, "residual", []),
    "combine": (ASSISTED, "combine", []),
    "alone": (APART, "train", ALONE),
    "once": (RECEIVING, "train", ONCE),
}
WHOLE = {"whole": [], "whole-alone": ALONE, "whole-once": ONCE}


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> list[str]:
    """The words of all commands: a small file, and how it is trained on."""
    return [*WORDS, "--data", str(write_ratings(tmp_path_factory.mktemp("data")))]


@pytest.fixture(scope="module")
def runs(given, tmp_path_factory):
    """Folder of whole runs, and of one that was killed in each step."""
    out = tmp_path_factory.mktemp("runs")
    words = [*given, "--run.out", str(out), "--run.name"]
    assert [main([*words, name, *flags]) for name, flags in WHOLE.items()] == [0, 0, 0]
    jobs = [[client, step, *words, name, *flags] for name, (client, step, flags) in CASES.items()]
    command = [sys.executable, "-m", "tests.assisted.killed_run", json.dumps(jobs)]
    root, alone = Path(__file__).parents[2], os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, cwd=root, env=alone, capture_output=True, text=True)
    assert killed.returncode == 0, killed.stderr
    assert json.loads(killed.stdout.splitlines()[-1]) == [-signal.SIGKILL] * len(jobs)
    return out / "mtal"


@pytest.mark.parametrize("name", CASES)
def test_a_run_killed_between_two_asks_goes_on_to_the_same_bits(
    given: list[str], runs: Path, tmp_path: Path, name: str
) -> None:
    client, _, flags = CASES[name]
    whole = runs / next(whole for whole, given in WHOLE.items() if given == flags)
    cut = tmp_path / "mtal" / name
    shutil.copytree(runs / name, cut)
    assert not (cut / "summary.json").exists()
    words = [*given, "--run.out", str(tmp_path), "--run.name", name, *flags]
    assert main([*words, "--run.resume", "true"]) == 0
    assert bits(cut) == bits(whole)
    assert summary(cut) == summary(whole)
    assert (cut / "transcript.jsonl").read_bytes() == (whole / "transcript.jsonl").read_bytes()
    entries = [
        sorted(p.name for p in (run / "checkpoints").glob("entries/*")) for run in (whole, cut)
    ]
    assert entries[0] == entries[1]
    assert bool(entries[0]) == (client != APART)  # MTAL keeps a model a round, ONCE what it got
