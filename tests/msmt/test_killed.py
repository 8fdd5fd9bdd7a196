"""A run that is killed within a round, and goes on to the same bits; more rounds after the last."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.msmt.small_scenarios import QUIET, advanced, run_of, settings

from coterie.core.cli.main import main
from coterie.core.run.serving import open_run
from coterie.core.tensors import tree
from coterie.msmt.client import PFClient

pytestmark = pytest.mark.long

WORDS = ["train", "pf-msmtrec", "--data.name", "world", "--data.rows", "[24,12]"]
WORDS += ["--data.valid_rows", "20", "--data.test_rows", "20", "--train.batch_size", "12"]
WORDS += ["--model.embedding", "2", "--model.experts", "2", "--model.expert_layers", "[4,3]"]
WORDS += ["--model.tower_layers", "[3]", "--model.dropout", "0.3", "--logger.wandb", "off"]
WORDS += ["--run.progress", "false", "--logger.transcript", "true"]
KILLED = """
import os, signal, sys
from coterie.core.cli.main import main
from coterie.msmt.client import PFClient

step, words, calls = sys.argv[1], sys.argv[2:], []
bound = getattr(PFClient, step)

def dies(self, down, mine, data, key):
    if 1 in data.ids.tolist():
        calls.append(step)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return bound(self, down, mine, data, key)

dies.__name__, dies.step = step, bound.step
setattr(PFClient, step, dies)
main(words)
"""


def bits(run: Path) -> list[tuple[str, object]]:
    """All that server and scenarios hold: parameters, moments, statistics, what is federated."""
    module = open_run(run)[1]
    state = {"server": module.server_state, "scenarios": module.store.to_plain()}
    return [
        (path, leaf.numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf))
        for path, leaf in tree.leaves(state)
    ]


def summary(run: Path) -> dict[str, object]:
    found = json.loads((run / "summary.json").read_text())
    return {name: found[name] for name in ("metrics", "up_bytes", "down_bytes", "rounds")}


bits_of_whole = cache(bits)


def assert_same(cut: Path, whole: Path) -> None:
    found = bits(cut)
    assert found == bits_of_whole(whole)
    names = {path for path, _ in found}
    for part in ("optimizer.moments.exp_avg_sq.psi", "statistics.input_norm.running_var"):
        assert any(name.endswith(part) for name in names)
    assert summary(cut) == summary(whole)
    assert (cut / "transcript.jsonl").read_bytes() == (whole / "transcript.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds."""
    out = tmp_path_factory.mktemp("whole")
    assert main([*WORDS, "--rounds", "2", "--run.out", str(out), "--run.name", "whole"]) == 0
    return out / "pf-msmtrec" / "whole"


class Cut(BaseException):
    """Ends a run where it stands, as nobody catches it."""


def dying(step: str) -> Any:
    """A scenario's step that does not come back from its second call."""
    bound, calls = getattr(PFClient, step), []

    def dies(self: PFClient, down: Any, mine: Any, data: Any, key: Any) -> Any:
        if 1 in data.ids.tolist():
            calls.append(step)
        if len(calls) == 2:
            raise Cut
        return bound(self, down, mine, data, key)

    dies.__name__, dies.step = step, bound.step  # type: ignore[attr-defined]
    return dies


@pytest.mark.parametrize("step", ["update", "aggregate!"])
def test_a_run_killed_within_a_round_goes_on_to_the_same_bits(
    tmp_path: Path, whole: Path, step: str
) -> None:
    """With ! by a signal, which takes a process of its own."""
    words = [*WORDS, "--rounds", "2", "--run.out", str(tmp_path), "--run.name", "cut"]
    if step.endswith("!"):
        command = [sys.executable, "-c", KILLED, step.rstrip("!"), *words]
        killed = subprocess.run(command, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert killed.returncode == -signal.SIGKILL
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PFClient, step, dying(step))
            with pytest.raises(Cut):
                main(words)
    cut = tmp_path / "pf-msmtrec" / "cut"
    assert not (cut / "summary.json").exists()
    assert main([*words, "--run.resume", "true"]) == 0
    assert_same(cut, whole)


def test_more_rounds_lead_where_a_longer_run_leads(tmp_path: Path, whole: Path) -> None:
    words = [*WORDS, "--run.out", str(tmp_path), "--run.name", "cut"]
    assert main([*words, "--rounds", "1"]) == 0
    assert main([*words, "--rounds", "2", "--run.resume", "true"]) == 0
    assert_same(tmp_path / "pf-msmtrec" / "cut", whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"pf.psi": False},  # what is not trained has no moments
        {"train.optimizer": "sgd", "pf.centre": "own"},
        {
            **{"pf.upload": "factored", "train.participation": 0.5, "reading": "literal"},
            **{"pf.share": ("experts",), "train.keep_moments": False},
        },
    ],
    ids=["no psi", "sgd, own", "factored, literal, experts, no moments"],
)
def test_any_form_of_it_is_resumed(tmp_path: Path, changes: dict[str, Any]) -> None:
    chosen = settings(QUIET, changes)
    once = run_of(chosen, rounds=1)
    torch.save(once.to_plain(), tmp_path / "last.ckpt")
    advanced(once, 1)
    again = run_of(chosen, rounds=0)
    again.load_plain(torch.load(tmp_path / "last.ckpt", weights_only=True))
    advanced(again, 1)
    expected, found = (dict(tree.tensors(run.to_plain())) for run in (once, again))
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[path], value) for path, value in expected.items())


@pytest.mark.parametrize(
    "other",
    [["--pf.c", "0.5"], ["--reading", "literal"], ["--method", "fedavg"]],
    ids=" ".join,
)
def test_a_run_does_not_go_on_with_other_settings(
    tmp_path: Path, whole: Path, other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*"))
    out = ["--run.out", str(whole.parents[1]), "--run.name", "whole", "--run.resume", "true"]
    assert main([*WORDS, "--rounds", "2", *out, *other]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert other[0].removeprefix("--") in said
    assert sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*")) == before
