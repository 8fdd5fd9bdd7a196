"""A run of PAGE from the command line, and what W&B's own tool reads in its offline run."""

import csv
import json
import os
import subprocess
import sys

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.registry.keys import KEYS, documented
from coterie.page.paper import KEYS as PAGE_KEYS

ACCURACIES = ("server", "global", "personal")
HISTOGRAMS = ("page/lr", "page/epochs", "page/reward_clients", "eval/personal_accuracy")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of three rounds."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder / "home"))
        flags = ["--rounds", "3", "--data.clients", "8", "--train.epochs", "4"]
        out = ["--run.out", str(folder), "--logger.histogram_every", "1"]
        assert main(["train", "page", *flags, *out, "--run.progress", "false"]) == 0
    [found] = folder.glob("page/synthetic*")
    return found


@pytest.fixture(scope="module")
def history(run):
    [file] = run.glob("wandb/offline-run-*/run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["history"]["item"] for line in lines if line["type"] == "history"]


@pytest.fixture(scope="module")
def rows(run):
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_round_shows_the_game(history):
    assert [item["round"] for item in history] == [1, 2, 3]
    for item in history:
        assert 0 < item["page/reward_server"] < 10
        assert 0 < item["page/reward_clients"] < 10
        assert 0.001 <= item["page/lr"] <= 0.1
        assert 1 <= item["page/epochs"] <= 4
        assert 0 <= item["page/weights_entropy"] <= torch.tensor(8.0).log()
        for name in ACCURACIES:
            assert 0 < item[f"eval/{name}_accuracy"] <= 1
            assert 0 < item[f"test/{name}_accuracy"] <= 1


def test_the_numbers_are_those_of_the_run(history, rows):
    shown = ("reward_server", "reward_clients", "lr", "epochs", "weights_entropy")
    names = [f"page/{name}" for name in shown]
    names += [f"eval/{name}_accuracy" for name in ACCURACIES]
    for item, row in zip(history, rows, strict=True):
        for name in names:
            assert item[name] == pytest.approx(float(row[name]), rel=1e-6)


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histograms_count_every_client(history, name):
    for item in history:
        assert item[f"clients/{name}._type"] == "histogram"
        assert sum(item[f"clients/{name}.values"]) == 8


def test_histograms_reach_from_the_least_to_the_most(history, rows):
    for item, row in zip(history, rows, strict=True):
        ends = item["clients/page/lr.bins"]
        assert 0.001 <= ends[0] < float(row["page/lr"]) < ends[-1] <= 0.1 + 1e-6


def test_every_column_is_documented(rows):
    for name in rows[0]:
        assert documented(name, (*KEYS, *PAGE_KEYS)), name
