"""A run killed at any moment goes on to the same bits."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.continual import killed_run
from tests.continual.killed_run import MOMENTS

from coterie.core.tensors import tree

pytestmark = pytest.mark.long

KILLED = -9


def final_state(out):
    checkpoint = torch.load(out / "f3crec/run/checkpoints/last.ckpt", weights_only=True)
    return dict(tree.leaves(checkpoint["federation"]))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted")
    killed_run.run(out)
    return out


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folder of runs that were killed, each in its own, by when; and how their processes ended."""
    out = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.continual.killed_run", str(out), *MOMENTS]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    return out, {words[0]: int(words[1]) for words in lines if words[0] in MOMENTS}


@pytest.fixture(scope="module")
def resumed(killed):
    """Go on with the run that was killed at a moment, once: its folder, and its rows till then."""
    out, ended = killed
    done = {}

    def resume(kill_at):
        folder = out / kill_at
        if kill_at not in done:
            assert ended[kill_at] == KILLED
            assert not (folder / "f3crec/run/summary.json").exists()
            done[kill_at] = numbers(folder)
            killed_run.run(folder, resume=True)
        return folder, done[kill_at]

    return resume


def known(values):
    """NaN, which a user without an item to find has, equals itself."""
    return values.nan_to_num(-1.0)


@pytest.mark.parametrize("kill_at", MOMENTS)
def test_a_killed_run_resumes_to_the_same_bits(uninterrupted, resumed, kill_at):
    folder, _ = resumed(kill_at)
    expected, found = final_state(uninterrupted), final_state(folder)
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


def test_a_resumed_metrics_file_has_every_round_once_with_its_numbers(uninterrupted, resumed):
    """The budget too: what was spent before the kill is spent."""
    folder, before = resumed("switch")
    expected, found = numbers(uninterrupted), numbers(folder)
    assert [row["round"] for row in found] == [str(r) for r in range(1, len(expected) + 1)]
    assert 0 < len(before) < len(found)
    assert found == expected
    of_a_round = 2 * 1.0 / killed_run.SCALE  # of an upload that each client sends
    assert [float(row["privacy/epsilon"]) for row in found] == pytest.approx(
        [of_a_round * number for number in range(1, len(found) + 1)]
    )
