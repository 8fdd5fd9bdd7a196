"""A run of PF-MSMTrec from the command line, and what W&B's own tool reads in its offline run."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.core.cli.main import main
from coterie.core.registry.keys import KEYS, documented
from coterie.msmt.paper import KEYS as OWN_KEYS
from coterie.msmt.paper import PANELS

SMALL = ["--data.name", "world", "--data.rows", "[40,23,31]", "--data.valid_rows", "40"]
SMALL += ["--data.test_rows", "40", "--model.embedding", "2", "--model.experts", "2"]
SMALL += ["--model.expert_layers", "[4,3]", "--model.tower_layers", "[3]", "--rounds", "3"]
SMALL += ["--train.batch_size", "16", "--train.lr", "0.02"]
SCENARIOS = 3
OF_SCENARIOS = (
    *("msmt/dual_weights", "msmt/psi", "msmt/psi_tower", "msmt/distance"),
    *("eval/personal_auc_ctr", "test/personal_auc_ctcvr"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three rounds."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder / "home"))
        out = ["--run.out", str(folder), "--run.progress", "false"]
        words = [*SMALL, *out, "--logger.histogram_every", "1"]
        assert main(["train", "pf-msmtrec", *words]) == 0
    [found] = folder.glob("pf-msmtrec/world*")
    return found


@pytest.fixture(scope="module")
def history(run: Path) -> list[dict[str, Any]]:
    """What the offline run holds, a row a round."""
    [file] = run.glob("wandb/offline-run-*/run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["history"]["item"] for line in lines if line["type"] == "history"]


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_round_shows_how_good_the_scenarios_are(history: list[dict[str, Any]]) -> None:
    rounds = [item for item in history if "eval/auc" in item]
    assert [item["round"] for item in rounds] == [1, 2, 3]
    for item in rounds:
        for part in ("eval", "test"):
            each = [item[f"{part}/auc_{task}"] for task in ("ctr", "ctcvr")]
            assert all(0 < value < 1 for value in each)
            assert item[f"{part}/auc"] == pytest.approx(sum(each) / 2)
            assert item[f"{part}/loss"] > 0
        assert item["fed/clients"] == SCENARIOS
        assert item["cost/local_steps"] == 3 + 2 + 2
        assert item["cost/up_bytes"] > 1000
        assert item["cost/down_bytes"] > item["cost/up_bytes"]


def test_every_round_shows_the_conflict(history: list[dict[str, Any]]) -> None:
    for item in history:
        if "eval/auc" not in item:
            continue
        assert -1 <= item["msmt/conflict"] <= 1
        assert 0 <= item["msmt/opposed"] <= 1
        assert 0 <= item["msmt/dual_gap"] < 1e-8
        assert 1 / 6 <= item["msmt/dual_weights"] <= 1  # of 3 scenarios with 2 experts
        assert item["msmt/distance"] >= 0
    first, *later = [item for item in history if "eval/auc" in item]
    assert first["msmt/psi"] == 0  # there was no direction to follow
    assert all(item["msmt/psi"] != 0 and item["msmt/psi_tower"] != 0 for item in later)
    assert later[-1]["msmt/distance"] > 1e-5


@pytest.mark.parametrize("name", OF_SCENARIOS)
def test_histograms_count_every_scenario(history: list[dict[str, Any]], name: str) -> None:
    found = [item for item in history if f"clients/{name}._type" in item]
    assert len(found) == 3
    for item in found:
        assert item[f"clients/{name}._type"] == "histogram"
        assert sum(item[f"clients/{name}.values"]) == SCENARIOS


def test_weights_of_scenarios_are_shares(history: list[dict[str, Any]]) -> None:
    for item in history:
        ends = item.get("clients/msmt/dual_weights.bins")
        assert ends is None or (0 <= ends[0] <= 1 / SCENARIOS <= ends[-1] <= 1 + 1e-9)


def test_the_numbers_are_those_of_the_run(
    history: list[dict[str, Any]], rows: list[dict[str, str]]
) -> None:
    rounds = [item for item in history if "eval/auc" in item]
    names = [n for n in rows[0] if n.startswith(("msmt/", "eval/", "test/")) and n in rounds[0]]
    assert len(names) > 15
    for item, row in zip(rounds, rows, strict=True):
        for name in names:
            assert item[name] == pytest.approx(float(row[name]), rel=1e-6), name


def test_every_column_is_documented(
    history: list[dict[str, Any]], rows: list[dict[str, str]]
) -> None:
    known = (*KEYS, *OWN_KEYS)
    for name in rows[0]:
        assert documented(name, known), name
    for item in history:
        for name in item:
            if name.startswith(("msmt/", "eval/", "test/", "fed/", "cost/", "last/")):
                assert documented(name, known), name


def test_panels_show_what_is_logged(history: list[dict[str, Any]]) -> None:
    logged = {name for item in history for name in item}
    for panel in PANELS:
        assert set(panel.keys) <= logged, panel.title


def test_there_is_a_table_of_scenarios(run: Path, rows: list[dict[str, str]]) -> None:
    shown = json.loads((run / "clients.json").read_text())
    assert [row["scenario"] for row in shown] == ["scenario 1", "scenario 2", "scenario 3"]
    assert [row["train"] for row in shown] == [40, 23, 31]
    assert all(0 < row["ctr"] < 1 for row in shown)
    tables = sorted(run.glob("wandb/offline-run-*/files/media/table/clients/*.json"))
    columns = ["round", "client", "test/personal_auc_ctr", "test/personal_auc_ctcvr"]
    assert len(tables) == 3
    for number, table in enumerate(map(json.loads, (path.read_text() for path in tables)), 1):
        assert table["columns"] == columns
        assert [row[0] for row in table["data"]] == [number] * SCENARIOS
        mean = sum(row[2] for row in table["data"]) / SCENARIOS
        assert mean == pytest.approx(float(rows[number - 1]["test/auc_ctr"]))
