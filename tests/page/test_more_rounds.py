"""A complete run that gets more rounds, or cannot."""

import csv
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.protocol.server import Server
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.tensors.saved import save
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.opening import reopened
from coterie.page.experiment import Experiment
from coterie.page.settings import Settings, TaskSettings, TrainSettings

pytestmark = pytest.mark.long

SMALL = ["--data.clients=5", "--train.epochs=1", "--train.batch_size=75"]
FLAGS = [*SMALL, "--logger.wandb=off", "--run.progress=false"]


def train(out: Path, name: str, rounds: int, *flags: str) -> int:
    where = [f"--run.out={out}", f"--run.name={name}", f"--rounds={rounds}"]
    return main(["train", "page", *FLAGS, *where, *flags])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A complete run ``one`` of two rounds, to be copied."""
    out = tmp_path_factory.mktemp("trained")
    assert train(out, "one", 2) == 0
    return out


@pytest.fixture
def one(trained, tmp_path) -> Path:
    """A copy of that run."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "page" / "one"


def federation(rounds: int) -> Federation:
    train = TrainSettings(epochs=1, batch_size=75)
    settings = Settings(rounds=rounds, data=TaskSettings(clients=4), train=train)
    return Experiment(settings).federation()


keep = Checkpoints.on_train_epoch_end


def interrupt_after_two(checkpoints, trainer, module):
    """Stands for what keeps checkpoints, until the user stops it."""
    keep(checkpoints, trainer, module)
    if module.run.round == 2:
        raise KeyboardInterrupt


def saved(folder: Path) -> dict:
    last = folder / "checkpoints" / "last.ckpt"
    return torch.load(last, weights_only=True)["federation"]


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("cost/seconds")} for row in rows]


@pytest.mark.parametrize("method", ["page", "dap-fl", "scaffold"])
def test_more_rounds_end_in_the_bits_of_a_run_of_as_many(tmp_path, method):
    chosen = f"--method={method}"
    assert train(tmp_path, "more", 2, chosen) == 0
    assert train(tmp_path, "more", 4, chosen, "--resume") == 0
    assert train(tmp_path, "whole", 4, chosen) == 0
    more, whole = (tmp_path / "page" / name for name in ("more", "whole"))
    found, expected = saved(more), saved(whole)
    assert found["round"] == 4
    assert found["finished"]
    named = dict(tree.tensors(found))
    for path, value in tree.tensors(expected):
        assert torch.equal(value.nan_to_num(-1.0), named[path].nan_to_num(-1.0)), path
    assert found["history"] == expected["history"]
    assert metrics(more) == metrics(whole)
    assert (more / "ledger.json").read_text() == (whole / "ledger.json").read_text()


def test_an_unfinished_run_without_a_name_goes_on_as_it_was_said_how(tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as changed:
        changed.setattr(Checkpoints, "on_train_epoch_end", interrupt_after_two)
        assert main(["train", "page", *FLAGS, f"--run.out={tmp_path}", "--rounds=4"]) == 130
    folder = tmp_path / "page" / "synthetic-page-softmax-seed0"
    assert saved(folder)["round"] == 2
    _, _, hint = capsys.readouterr().err.strip().partition("to go on, say: coterie ")
    assert main(shlex.split(hint)) == 0
    assert saved(folder)["round"] == 4
    assert [path.name for path in (tmp_path / "page").iterdir()] == [folder.name]


def test_a_finished_run_without_a_name_goes_on(tmp_path):
    start = ["train", "page", *FLAGS, f"--run.out={tmp_path}"]
    assert main([*start, "--rounds=2"]) == 0
    assert main([*start, "--rounds=3", "--resume"]) == 0
    [folder] = (tmp_path / "page").iterdir()
    assert saved(folder)["round"] == 3


@pytest.mark.parametrize(
    ("rounds", "more", "flags", "why"),
    [
        (2, 1, [], "with 'rounds' 1: it has done 2 already;"),
        (3, 5, ["--train.evaluate_every=2"], "its last round was evaluated out of turn"),
        (
            9,
            12,
            ["--game.patience=1", "--game.tolerance=1e9"],
            "it came to its end by itself in round 2",
        ),
    ],
)
def test_a_refusal_leaves_the_folder_as_it_was(tmp_path, capsys, rounds, more, flags, why):
    assert train(tmp_path, "one", rounds, *flags) == 0
    folder = tmp_path / "page" / "one"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert train(tmp_path, "one", more, *flags, "--resume") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert why in line
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("damage", "rounds"),
    [(b"", 4), (b"no checkpoint", 2), (b"\x80\x02]q\x00.", 4), (None, 2), (None, 4)],
)
def test_a_damaged_checkpoint_is_one_line(one, tmp_path, capsys, rounds, damage):
    last = one / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:999] if damage is None else damage)
    capsys.readouterr()
    assert train(tmp_path, "one", rounds, "--resume") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert f"checkpoint {last} is damaged (" in line
    assert line.endswith("put back a copy of it, or train anew under another --run.name")
    assert (one / "summary.json").is_file()


@pytest.mark.usefixtures("one")
def test_a_summary_that_cannot_be_removed_is_one_line(tmp_path, capsys, monkeypatch):
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.name == "summary.json":
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    capsys.readouterr()
    assert train(tmp_path, "one", 4, "--resume") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "summary.json (permission denied)" in line


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_an_unfinished_run_cannot_have_fewer_rounds_than_it_has_done(tmp_path, rounds):
    first = FederatedRun(federation(7))
    for _ in range(3):
        first.advance()
    save({"federation": first.to_plain()}, tmp_path / "checkpoints" / "last.ckpt")
    if rounds > 3:
        assert not reopened(federation(rounds), tmp_path, rounds)
        return
    with pytest.raises(UserError, match="it has done 3 already; leave the flag out"):
        reopened(federation(rounds), tmp_path, rounds)


class Counting(Server[int]):
    """Counts rounds; a block ends after so many."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def begin(self, key):
        return 0

    def round(self, state, cohort, key):
        return state + 1

    def stop(self, state, history):
        return "block" if len(history) >= self.rounds else "go"


@pytest.mark.parametrize(
    ("done", "rounds", "why"),
    [
        (2, 4, None),
        (3, 4, "earlier blocks had another number"),  # one block is over
        (4, 5, "earlier blocks had another number"),  # the second is under way
        (3, 2, "it has done 3 already"),
        (6, 4, "earlier blocks had another number"),  # all are over
    ],
)
def test_all_blocks_have_as_many_rounds(tmp_path, done, rounds, why):
    def blocks(number: int) -> FederatedRun:
        one = federation(number)
        return FederatedRun(replace(one, server=Counting(number), blocks=[*one.blocks] * 2))

    first = blocks(3)
    for _ in range(done):
        first.advance()
    save({"federation": first.to_plain()}, tmp_path / "checkpoints" / "last.ckpt")
    later = blocks(rounds).federation
    if why is None:
        assert not reopened(later, tmp_path, rounds)
        return
    # A complete run has nothing to go on with; any other goes on without the flag.
    leave = "" if first.finished else "leave the flag out, or "
    told = f"with 'rounds' {rounds}: {why}; {leave}start a new run"
    with pytest.raises(UserError, match=told):
        reopened(later, tmp_path, rounds)


def test_an_end_that_left_a_trace_cannot_be_taken_back():
    class Tidy(Server[None]):
        def end_block(self, state, cohort, key):
            return state

    with pytest.raises(UserError, match="cannot be taken back"):
        Tidy().reopen(None, [])
