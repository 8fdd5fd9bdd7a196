"""A run that is killed between two asks of a round, and goes on to the same bits."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.run.serving import open_run
from coterie.core.tensors import tree

WORDS = ["train", "mtal", "--rounds", "3", "--train.epochs", "1", "--model.hidden", "8"]
WORDS += ["--model.code", "4", "--data.domains", "uniform", "--data.count", "3"]
WORDS += ["--logger.wandb", "off", "--logger.transcript", "true", "--run.progress", "false"]
KILLED = """
import os, signal, sys
from coterie.core.cli.main import main
from coterie.core.registry.papers import load

client, step, words = load(sys.argv[1]), sys.argv[2], sys.argv[3:]
bound = getattr(client, step)

def dies(self, down, mine, data, key):
    if data.id == 1 and down.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return bound(self, down, mine, data, key)

dies.__name__, dies.step = step, bound.step
setattr(client, step, dies)
main(words)
"""
ASSISTED, APART = "coterie.assisted.client:Organisation", "coterie.assisted.apart.client:Apart"
ALONE = ["--method", "alone", "--model.name", "mf"]


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


@pytest.mark.parametrize(
    ("client", "step", "flags"),
    [
        (ASSISTED, "residual", []),
        (ASSISTED, "fit", []),
        (ASSISTED, "combine", []),
        (APART, "train", ALONE),
    ],
    ids=["residual", "fit", "combine", "alone"],
)
def test_a_run_killed_between_two_asks_goes_on_to_the_same_bits(
    tmp_path: Path, client: str, step: str, flags: list[str]
) -> None:
    words = [*WORDS, *flags, "--run.out", str(tmp_path), "--run.name"]
    assert main([*words, "whole"]) == 0
    command = [sys.executable, "-c", KILLED, client, step, *words, "cut"]
    killed = subprocess.run(command, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL
    whole, cut = tmp_path / "mtal" / "whole", tmp_path / "mtal" / "cut"
    assert not (cut / "summary.json").exists()
    assert main([*words, "cut", "--run.resume", "true"]) == 0
    assert bits(cut) == bits(whole)
    assert summary(cut) == summary(whole)
    assert (cut / "transcript.jsonl").read_bytes() == (whole / "transcript.jsonl").read_bytes()
    entries = [
        sorted(p.name for p in (run / "checkpoints").glob("entries/*")) for run in (whole, cut)
    ]
    assert entries[0] == entries[1]
    assert bool(entries[0]) == (client == ASSISTED)  # only MTAL keeps a model a round
