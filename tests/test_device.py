"""Where tensors are made: a whole round of every paper on a device that is not the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.tensors import keys
from coterie.core.tensors.device import choose_device, moved, on_host
from coterie.core.tensors.keys import Key

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("far_device.py")
META = torch.device("meta")
PAPERS = {
    "f3crec": [],
    "page": ["--data.clients", "8", "--train.epochs", "1"],
    "mtal": [
        *("--data.count", "3", "--data.domains", "uniform", "--rounds", "2"),
        *("--train.epochs", "2"),
    ],
    # Adam makes of rounding whole steps where a gradient is next to nothing.
    "pf-msmtrec": [
        *("--model.dropout", "0", "--engine.dtype", "float64", "--compare", "false"),
        *("--data", "world", "--data.rows", "[120,80]", "--data.valid_rows", "40"),
        *("--model.experts", "2", "--model.tower_layers", "[8]"),
    ],
    # Dropout's masks are the device's own; what is short to pre-train is as good here.
    "pplr": [
        *("--lora.dropout", "0", "--pretrain.steps", "3", "--model.width", "8"),
        *("--model.layers", "1", "--data.clients", "2", "--data.shots", "60"),
    ],
}


WITHOUT_EXCHANGE = ["--method", "alone", "--model.name", "ncf", "--train.epochs", "1"]
NOISE = ["--privacy.at", "server", "--privacy.clip", "0.1", "--privacy.noise", "gaussian"]
PLAYS: list[tuple[str, str, Sequence[str]]] = [
    *((paper, "nothing", flags) for paper, flags in PAPERS.items()),
    *(("f3crec", "nothing", ["--aggregate.rule", rule]) for rule in ("median", "multi-krum")),
    ("page", "nothing", [*PAPERS["page"], "--aggregate.rule", "multi-krum"]),
    ("f3crec", "nothing", [*NOISE, "--privacy.scale", "0.01"]),
    ("mtal", "nothing", [*PAPERS["mtal"], *WITHOUT_EXCHANGE]),
    *(("f3crec", plant, []) for plant in ("factory", "numpy", "constant")),
]


@pytest.fixture(scope="module")
def played() -> subprocess.CompletedProcess[str]:
    """All plays in one process, since its imports take longer than a paper does."""
    every = [[paper, plant, *flags] for paper, plant, flags in PLAYS]
    command = [sys.executable, str(SCRIPT), json.dumps(every)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def result(run: subprocess.CompletedProcess[str], play: int) -> dict[str, Any]:
    lines = run.stdout.splitlines()
    assert play < len(lines), run.stderr[-3000:]
    return json.loads(lines[play])


def check_place(found: dict[str, Any]) -> None:
    """Everything was made where it belongs, and the numbers are those of the CPU."""
    assert found["made"] > 100
    assert found["astray"] == []
    assert found["state_elsewhere"] == []
    assert found["checkpoint_elsewhere"] == []
    assert found["far"] == pytest.approx(found["near"], rel=1e-4, nan_ok=True)


def test_a_round_makes_every_tensor_where_the_engine_runs(
    played: subprocess.CompletedProcess[str],
) -> None:
    for play, (_, plant, _) in enumerate(PLAYS):
        if plant == "nothing":
            check_place(result(played, play))


def test_a_tensor_made_elsewhere_or_before_the_run_is_found(
    played: subprocess.CompletedProcess[str],
) -> None:
    for play, (_, plant, _) in enumerate(PLAYS):
        if plant in ("factory", "numpy"):
            (astray,) = result(played, play)["astray"]
            assert f"plant_{plant}" in astray
    # A constant of a module is on the CPU for good, so that what uses it fails.
    assert played.returncode != 0
    assert "tensors on two devices" in played.stderr
    assert "plant_constant" in played.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UserError, match=r"'engine.device' is cuda, and torch finds no GPU here"):
        choose_device("cuda")
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_training_on_a_gpu_that_is_not_there_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--engine.device", "cuda", "--run.out", str(tmp_path / "runs")]
    assert main(["train", "f3crec", *flags]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "say --engine.device auto" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_run_of_a_gpu_is_read_and_goes_on_without_one(tmp_path: Path) -> None:
    # The data of PAGE are one block, so it can be given more rounds.
    flags = ["page", "--preset", "smoke", "--run.out", str(tmp_path), "--run.name", "a"]
    flags += ["--logger.wandb", "off", "--run.progress", "false", *PAPERS["page"]]
    assert main(["train", *flags]) == 0
    config = tmp_path / "page" / "a" / "config.yaml"
    config.write_text(config.read_text().replace("device: auto", "device: cuda"))
    assert "device: cuda" in config.read_text()
    assert main(["evaluate", "--run", str(config.parent)]) == 0
    more = [*flags, "--rounds", "3", "--resume"]
    assert main(["train", *more]) == 2
    assert main(["train", *more, "--engine.device", "cpu"]) == 0


def test_a_module_is_drawn_on_the_cpu_and_moved() -> None:
    key = Key.from_seed(0)
    with key.torch_rng(), META:
        there = on_host(lambda: torch.nn.Linear(2, 1))
        after = torch.rand(1, device="cpu")
    with key.torch_rng():
        torch.nn.Linear(2, 1)
        assert torch.rand(1) == after
    assert there.weight.device == META


def test_a_tree_that_is_there_is_not_copied() -> None:
    values = {"a": torch.ones(2), "b": [torch.ones(1), 3]}
    assert moved(values, torch.device("cpu")) is values
    assert moved(values, META)["b"][0].device == META


def test_keys_hash_alike_off_the_cpu() -> None:
    numbers = torch.tensor([0, 1, -1, 1 << 62, -(1 << 63), 12345678901234567])
    assert torch.equal(keys._mix_there(numbers), keys._mix(numbers))
