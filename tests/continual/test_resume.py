"""A run killed at any moment goes on to the same bits."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coterie.core.tensors import tree

SCRIPT = Path(__file__).with_name("killed_run.py")
KILLED = -9


def run(out, kill_at="none", resume="new"):
    command = [sys.executable, str(SCRIPT), str(out), kill_at, resume]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def final_state(out):
    checkpoint = torch.load(out / "f3crec/run/checkpoints/last.ckpt", weights_only=True)
    return dict(tree.leaves(checkpoint["federation"]))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted")
    finished = run(out)
    assert finished.returncode == 0, finished.stderr
    return out


def known(values):
    """NaN, which a user without an item to find has, equals itself."""
    return values.nan_to_num(-1.0)


@pytest.mark.parametrize("kill_at", ["round", "asks", "switch", "write", "summary"])
def test_a_killed_run_resumes_to_the_same_bits(uninterrupted, tmp_path, kill_at):
    assert run(tmp_path, kill_at).returncode == KILLED
    assert not (tmp_path / "f3crec/run/summary.json").exists()
    resumed = run(tmp_path, resume="resume")
    assert resumed.returncode == 0, resumed.stderr
    expected, found = final_state(uninterrupted), final_state(tmp_path)
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        same = (
            torch.equal(known(value), known(found[path]))
            if torch.is_tensor(value)
            else value == found[path]
        )
        assert same or "seconds" in str(value), path


def numbers(out):
    """Rows of metrics.csv without times; NaN, which is written as nothing, equals itself."""
    with (out / "f3crec/run/metrics.csv").open(newline="") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith("cost/seconds")}
            for row in csv.DictReader(file)
        ]


def test_a_resumed_metrics_file_has_every_round_once_with_its_numbers(uninterrupted, tmp_path):
    """The budget too: what was spent before the kill is spent."""
    assert run(tmp_path, "switch").returncode == KILLED
    done = len(numbers(tmp_path))
    assert run(tmp_path, resume="resume").returncode == 0
    expected, found = numbers(uninterrupted), numbers(tmp_path)
    assert [row["round"] for row in found] == [str(r) for r in range(1, len(expected) + 1)]
    assert 0 < done < len(found)
    assert found == expected
    of_a_round = 2 * 1.0 / 0.05  # of an upload that each client sends, as in killed_run.py
    assert [float(row["privacy/epsilon"]) for row in found] == pytest.approx(
        [of_a_round * number for number in range(1, len(found) + 1)]
    )
