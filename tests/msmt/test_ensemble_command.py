"""The method ``ensemble`` by its commands: killed, resumed, exported, attacked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score
from tests.msmt.test_killed import WORDS, Cut, bits, summary

from coterie.core.cli.main import main
from coterie.core.export.write import export
from coterie.core.run.exported import Asked
from coterie.core.run.serving import open_run
from coterie.msmt.attack import report
from coterie.msmt.ensemble.client import EnsembleClient

pytestmark = pytest.mark.long
ROUNDS = 3
MINE = [*WORDS, "--method", "ensemble", "--model.name", "esmm", "--rounds", str(ROUNDS)]
MINE += ["--ensemble.epochs", "2", "--train.lr", "0.05"]
KILLED = """
import os, signal, sys
from coterie.core.cli.main import main
from coterie.msmt.ensemble.client import EnsembleClient

bound = EnsembleClient.tune

def tune(self, down, mine, data, key):
    os.kill(os.getpid(), signal.SIGKILL)

tune.step = bound.step
EnsembleClient.tune = tune
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to its end."""
    out = tmp_path_factory.mktemp("whole")
    assert main([*MINE, "--run.out", str(out), "--run.name", "whole"]) == 0
    return out / "pf-msmtrec" / "whole"


@pytest.mark.parametrize("step", ["update", "tune!"])
def test_a_run_cut_off_goes_on_to_the_same_bits(tmp_path: Path, whole: Path, step: str) -> None:
    """Within the second round, or, by a signal, while it fine-tunes."""
    words = [*MINE, "--run.out", str(tmp_path), "--run.name", "cut"]
    if step.endswith("!"):
        command = [sys.executable, "-c", KILLED, *words]
        killed = subprocess.run(command, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert killed.returncode == -signal.SIGKILL
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EnsembleClient, step, dying(step))
            with pytest.raises(Cut):
                main(words)
    cut = tmp_path / "pf-msmtrec" / "cut"
    assert not (cut / "summary.json").exists()
    assert main([*words, "--run.resume", "true"]) == 0
    assert bits(cut) == bits(whole)
    assert summary(cut) == summary(whole)
    assert (cut / "transcript.jsonl").read_bytes() == (whole / "transcript.jsonl").read_bytes()


def dying(step: str) -> Any:
    """A scenario's step that does not come back from its second call."""
    bound, calls = getattr(EnsembleClient, step), []

    def dies(self: EnsembleClient, down: Any, mine: Any, data: Any, key: Any) -> Any:
        calls.append(step)
        if len(calls) == 2:
            raise Cut
        return bound(self, down, mine, data, key)

    dies.__name__, dies.step = step, bound.step  # type: ignore[attr-defined]
    return dies


def test_another_number_of_rounds_is_taken_while_none_has_fine_tuned(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--run.out", str(whole.parents[1]), "--run.name", "whole", "--run.resume", "true"]
    words = [word if word != str(ROUNDS) else str(ROUNDS + 1) for word in MINE]
    assert main([*words, *out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot be taken back" in said
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EnsembleClient, "update", dying("update"))
        with pytest.raises(Cut):
            main([*words, "--run.out", str(tmp_path), "--run.name", "cut"])
    cut = ["--run.out", str(tmp_path), "--run.name", "cut", "--run.resume", "true"]
    assert main([*MINE, *cut]) == 0
    assert bits(tmp_path / "pf-msmtrec" / "cut") == bits(whole)


def test_both_networks_are_exported_as_one(tmp_path: Path, whole: Path) -> None:
    """The tensors, loaded into the two networks by hand, rank as the run did."""
    export(whole, tmp_path / "own", "safetensors", Asked(client=1))
    tensors = {
        n: torch.from_numpy(v) for n, v in load_file(tmp_path / "own" / "model.safetensors").items()
    }
    experiment, module = open_run(whole)
    test = experiment.task.clients.test
    rows = slice(int(test.offsets[1]), int(test.offsets[2]))
    batch = {name: value[rows] for name, value in test.samples.items()}
    logits = []
    for name in ("own.", "partner."):
        network = experiment.build().eval()
        own = {n.removeprefix(name): v for n, v in tensors.items() if n.startswith(name)}
        network.load_state_dict(own)
        with torch.no_grad():
            logits.append(network.logits(batch))
    mixed = tensors["slopes"][0] * logits[0] + tensors["slopes"][1] * logits[1] + tensors["offset"]
    areas = json.loads((whole / "clients.json").read_text())[1]
    for number, task in enumerate(experiment.task.schema.tasks):
        label = batch["labels"][:, number].numpy()
        if 0 < label.sum() < len(label):
            found = roc_auc_score(label, mixed[:, number].numpy())
            assert found == pytest.approx(areas[task], abs=1e-6)
    export(whole, tmp_path / "server", "safetensors", Asked())
    server = load_file(tmp_path / "server" / "model.safetensors")
    assert not any(name.startswith("own.") for name in server)
    best = module.server_state.best_weights
    assert all(np.array_equal(server[name], value.numpy()) for name, value in best.items())


def test_a_control_has_no_server_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MINE, "--ensemble.partner", "local", "--run.out", str(tmp_path)]
    assert main([*words, "--run.name", "control"]) == 0
    run = str(tmp_path / "pf-msmtrec" / "control")
    capsys.readouterr()
    assert main(["export", "--run", run, "--to", str(tmp_path / "x")]) == 2
    assert "in ensemble the server has no model that answers" in capsys.readouterr().err
    assert main(["msmt", "attack", "--run", run]) == 2
    said = capsys.readouterr().err
    assert "nothing is uploaded" in said
    assert said.count("\n") == 1


def test_an_attack_hears_what_fedavgs_server_hears(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "plot_panels", lambda panels, title, path: path)
    theirs = [*WORDS, "--method", "fedavg", "--model.name", "esmm", "--rounds", "2"]
    theirs += ["--train.lr", "0.05", "--run.out", str(tmp_path), "--run.name", "fedavg"]
    assert main(theirs) == 0
    found = []
    for run in (whole, tmp_path / "pf-msmtrec" / "fedavg"):
        words = ["--run", str(run), "--rounds", "1,2", "--scales", "0.1", "--rows", "12"]
        assert main(["msmt", "attack", *words]) == 0
        rows = json.loads((run / "attack.json").read_text())["rows"]
        found.append([{k: v for k, v in row.items() if k != "test_auc"} for row in rows])
    assert json.dumps(found[0]) == json.dumps(found[1])
