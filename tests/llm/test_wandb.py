"""An offline W&B run of PPLR, read back with W&B's own tool."""

import json
import os
import subprocess
import sys

import pytest

from coterie.core.cli.main import main


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder / "home"))
        flags = ["--rounds", "2", "--model.width", "16", "--pretrain.steps", "20"]
        out = ["--run.out", str(folder), "--logger.histogram_every", "1"]
        assert main(["train", "pplr", *flags, *out, "--run.progress", "false"]) == 0
    [file] = folder.glob("pplr/*/wandb/offline-run-*/run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_round_shows_the_mechanism(records):
    history = [line["history"]["item"] for line in records if line["type"] == "history"]
    assert [item["round"] for item in history] == [1, 2]
    for item in history:
        assert 0 <= item["pplr/similarity"] <= 1
        assert 0 < item["pplr/warmup"] <= 1
        assert item["pplr/difficulty"] == pytest.approx(1 / 5)  # p sums to 1 over five clients
        assert item["pplr/imbalance"] >= 0
    assert history[-1]["test/recall@10"] >= 0


def test_the_clients_are_rows_of_one_table(records):
    text = "\n".join(json.dumps(line) for line in records)
    assert "clients/table" in text
    assert "pplr" in {name.split("/")[0] for line in records for name in globs(line)}


def globs(line):
    metric = line.get("metric", {})
    return [metric.get("glob_name", metric.get("name", ""))]
