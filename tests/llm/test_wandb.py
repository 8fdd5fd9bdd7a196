"""An offline W&B run of PPLR, read back with W&B's own tool."""

import csv
import hashlib
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from coterie.core.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of two rounds."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder / "home"))
        flags = ["--rounds", "2", "--model.width", "16", "--pretrain.steps", "20"]
        out = ["--run.out", str(folder), "--logger.histogram_every", "1"]
        assert main(["train", "pplr", *flags, *out, "--run.progress", "false"]) == 0
    [found] = folder.glob("pplr/sample*")
    return found


@pytest.fixture(scope="module")
def records(run):
    [file] = run.glob("wandb/offline-run-*/run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_every_round_shows_the_mechanism(records):
    history = [line["history"]["item"] for line in records if line["type"] == "history"]
    assert [item["round"] for item in history] == [1, 2]
    for item in history:
        assert 0 <= item["pplr/similarity"] <= 1
        assert 0 < item["pplr/warmup"] <= 1
        assert item["pplr/difficulty"] == pytest.approx(1 / 5)  # p sums to 1 over five clients
        assert item["pplr/imbalance"] >= 0
    assert history[-1]["test/recall@10"] >= 0


def test_every_key_is_of_a_known_namespace(records):
    assert "pplr" in {name.split("/")[0] for line in records for name in globs(line)}


def test_the_rows_of_the_client_table_are_the_runs_own_values(run, records):
    table = {(row["round"], row["client"]): row for row in client_table(run, records)}
    names = [pseudonym(run, client) for client in range(5)]
    assert list(table) == [(number, name) for number in (1, 2) for name in names]
    with (run / "metrics.csv").open() as file:
        rounds = list(csv.DictReader(file))
    for number, line in enumerate(rounds, start=1):
        rows = [table[number, name] for name in names]
        for measure in ("pplr/similarity", "pplr/difficulty", "pplr/warmup"):
            values = [row[measure] for row in rows]
            assert sum(values) / 5 == pytest.approx(float(line[measure]), rel=1e-5)
            assert len(set(values)) == 5
        recalls = [row["eval/recall@10"] for row in rows]
        assert max(recalls) / min(recalls) - 1 == pytest.approx(float(line["pplr/imbalance"]))
        losses = [row["fed/loss"] for row in rows]
        assert min(losses) < float(line["fed/loss"]) < max(losses)
        # p follows from the losses (Eq. 4).
        weights = [math.exp((loss - max(losses)) / 0.05) for loss in losses]
        expected = [weight / sum(weights) for weight in weights]
        assert [row["pplr/difficulty"] for row in rows] == pytest.approx(expected, rel=1e-3)
    clients = json.loads((run / "clients.json").read_text())
    tested = [table[2, name]["test/recall@10"] for name in names]
    assert tested == pytest.approx([client["recall@10"] for client in clients], rel=1e-6)
    assert {table[1, name]["test/recall@10"] for name in names} == {None}  # at the end only


def client_table(run, records):
    """All rows that W&B keeps of the table, in the order of the rounds."""
    history = [line["history"]["item"] for line in records if line["type"] == "history"]
    paths = [item["clients/table.path"] for item in history if "clients/table.path" in item]
    rows = []
    for path in paths:
        [file] = run.glob(f"wandb/offline-run-*/files/{path}")
        part = json.loads(file.read_text())
        rows += [dict(zip(part["columns"], row, strict=True)) for row in part["data"]]
    return rows


def pseudonym(run, client):
    """The name of a client, by the salt that stays in the run's checkpoint."""
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=False)
    [salt] = [s["salt"] for s in checkpoint["loggers"].values() if "salt" in s]
    key = bytes.fromhex(salt)
    return hashlib.blake2b(str(client).encode(), key=key, digest_size=6).hexdigest()


def globs(line):
    metric = line.get("metric", {})
    return [metric.get("glob_name", metric.get("name", ""))]
