"""The folder of a run: made in one step or not at all, opened only when it fits."""

import copy
import dataclasses
import errno
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.core import files as storage
from coterie.core.errors import UserError
from coterie.core.files import write_json, write_text, writing
from coterie.core.registry.papers import Paper
from coterie.core.run import runfolder
from coterie.core.run.runfolder import RunFolder, Summary, default_name, resumable, stored_settings
from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import values_of
from coterie.core.settings.sections import PrivacySettings

DONE = Summary(3, {"ndcg": 0.5, "lost": float("nan")}, {"ndcg": 0.6}, 10, 20, 1.5)


def settings(toy: Paper, *flags: str) -> Any:
    return configure(toy, flags).settings


def create(toy: Paper, *flags: str) -> RunFolder:
    return RunFolder.for_settings(toy, settings(toy, *flags))


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_new_folder_holds_its_settings(toy: Paper) -> None:
    run = create(toy, "--out", "out", "--seed", "3", "--data", "dir/my.ratings.csv")
    assert run.path == Path("out/toyrec/my-avg-mf-seed3")
    assert files(run.path) == ["config.yaml"]
    assert RunFolder.open(run.path).settings == run.settings
    assert not run.finished


def test_names_are_unique(toy: Paper) -> None:
    names = [create(toy).path.name for _ in range(3)]
    assert names == ["sample-avg-mf-seed0", "sample-avg-mf-seed0-2", "sample-avg-mf-seed0-3"]
    assert default_name(toy, settings(toy)) == names[0]
    assert files(Path("runs/toyrec")) == sorted([*names, *(f"{n}/config.yaml" for n in names)])


def test_a_name_lost_to_another_process_is_not_overwritten(
    toy: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def beaten(source: Path, target: Path) -> None:
        if Path(target).name == "sample-avg-mf-seed0":
            Path(target).mkdir()
            (Path(target) / "theirs").touch()
        rename(source, target)

    monkeypatch.setattr(runfolder.os, "rename", beaten)
    assert create(toy).path.name == "sample-avg-mf-seed0-2"
    assert files(Path("runs/toyrec/sample-avg-mf-seed0")) == ["theirs"]


def test_taken_names_are_refused(toy: Paper) -> None:
    run = create(toy, "--run.name", "mine")
    with pytest.raises(UserError) as caught:
        create(toy, "--run.name", "mine")
    assert str(caught.value) == (
        "runs/toyrec/mine holds an unfinished run: go on by --resume, or choose another --run.name"
    )
    run.write_summary(DONE)
    with pytest.raises(UserError) as caught:
        create(toy, "--run.name", "mine")
    assert str(caught.value) == (
        "runs/toyrec/mine holds a finished run: choose another name by --run.name"
    )
    Path("runs/toyrec/other").mkdir()
    with pytest.raises(UserError) as caught:
        RunFolder.create(toy, settings(toy, "--run.name", "other"))
    assert str(caught.value) == (
        "runs/toyrec/other is there already: choose another name by --run.name"
    )


def test_folder_below_a_file(toy: Paper) -> None:
    Path("file").touch()
    with pytest.raises(UserError) as caught:
        create(toy, "--out", "file/below")
    assert str(caught.value) == (
        "cannot write file/below/toyrec/sample-avg-mf-seed0 (not a directory): "
        "choose another folder by --out DIR"
    )


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.ENOSPC,
            "no space left for {path}: free some, or choose another folder by --out DIR",
        ),
        (
            errno.EACCES,
            "cannot write {path} (permission denied): choose another folder by --out DIR",
        ),
        (
            errno.EROFS,
            "cannot write {path} (read-only file system): choose another folder by --out DIR",
        ),
    ],
)
@pytest.mark.parametrize("call", ["mkstemp", "replace", "mkdtemp"])
def test_errors_of_the_disk_leave_nothing_behind(
    toy: Paper, monkeypatch: pytest.MonkeyPatch, number: int, message: str, call: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    owner = storage.os if call == "replace" else storage.tempfile
    monkeypatch.setattr(owner, call, fail)
    with pytest.raises(UserError) as caught:
        create(toy, "--out", "new/out")
    text = str(caught.value)
    assert "\n" not in text
    path = text.removeprefix("no space left for ").removeprefix("cannot write ").split(" (")[0]
    assert text == message.format(path=path.split(":")[0])
    assert not Path("new").exists()


def test_a_full_disk_keeps_the_old_file(
    toy: Paper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.json"
    write_json(path, [1, 2.5, float("inf"), {"a": None}])
    before = path.read_text()
    assert json.loads(before) == [1, 2.5, None, {"a": None}]

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(UserError, match="no space left"):
        write_json(path, [3])
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_interruption_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "config.yaml", "seed: 1\n")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "ways", "message"),
    [
        (errno.ENOSPC, {"when_full": "then go on"}, "free some, then go on"),
        (errno.ENOSPC, {"elsewhere": "take another place"}, "free some, or take another place"),
        (errno.EACCES, {"when_full": "then go on"}, "choose another folder by --out DIR"),
        (errno.EACCES, {"elsewhere": "take another place"}, "denied): take another place"),
    ],
)
def test_writing_says_what_to_do(
    tmp_path: Path, number: int, ways: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError) as caught, writing(tmp_path, **ways):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).endswith(message)


def test_writing_lets_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        raise ZeroDivisionError


def test_summary_has_the_documented_fields(toy: Paper) -> None:
    run = create(toy, "--seed", "4", "--method", "prox")
    run.write_summary(DONE)
    found = json.loads((run.path / "summary.json").read_text())
    assert list(found) == [
        *("paper", "method", "reading", "data", "seed", "rounds", "metrics", "reference"),
        *("up_bytes", "down_bytes", "seconds", "notes", "left_out", "data_digest"),
        *("versions", "git"),
    ]
    assert found["method"] == "prox"
    assert found["metrics"] == {"ndcg": 0.5, "lost": None}
    assert found["versions"].keys() >= {"python", "torch", "coterie-core"}
    assert run.finished
    assert run.read_json("summary.json") == found


@pytest.mark.parametrize(
    "flags",
    [
        ["--rounds", "50"],
        ["--logger.wandb", "off", "--run.progress", "false"],
        ["--engine.chunk", "7", "--engine.threads", "1"],
        [],
    ],
)
def test_what_may_change_when_a_run_goes_on(toy: Paper, flags: Sequence[str]) -> None:
    run = create(toy, "--run.name", "mine")
    again = create(toy, "--run.name", "mine", "--resume", *flags)
    assert again.path == run.path
    stored = RunFolder.open(run.path).settings
    assert stored == dataclasses.replace(
        again.settings, run=dataclasses.replace(again.settings.run, resume=False)
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.lr", "3"], "another 'model.lr': it has '0.1', not '3.0'"),
        (["--data", "ml-1m"], "another 'data.name': it has 'sample', not 'ml-1m'"),
        (["--engine.dtype", "float64"], "another 'engine.dtype': it has 'float32', not 'float64'"),
        (["--model.widths", "[8, 8]"], "another 'model.widths': it has '[8]', not '[8, 8]'"),
        (["--logger.transcript"], "another 'logger.transcript': it has 'False', not 'True'"),
    ],
)
def test_what_may_not_change(toy: Paper, flags: Sequence[str], message: str) -> None:
    run = create(toy, "--run.name", "mine")
    before = (run.path / "config.yaml").read_text()
    with pytest.raises(UserError) as caught:
        create(toy, "--run.name", "mine", "--resume", *flags)
    assert str(caught.value) == (
        f"cannot resume runs/toyrec/mine with {message}; "
        "leave the flag out, or start a new run without --resume"
    )
    assert (run.path / "config.yaml").read_text() == before


MAY_DIFFER = {"rounds", "data.root"} | {
    f"engine.{name}"
    for name in (
        *("device", "chunk", "threads", "kernels", "workers", "name", "processes"),
        *("address", "deadline", "start", "min_clients", "patience"),
    )
}
"""Beside where a run is kept and what is told of it: nothing that its numbers depend on."""


def test_every_other_setting_is_that_of_the_run(toy: Paper) -> None:
    """One after the other: seed, data, model, and how uploads are clipped and hidden."""
    run = create(toy)
    stored = values_of(run.settings)
    changed = [key for key in stored if not key.startswith(("run.", "logger.", "trainer."))]
    assert {"seed", "method", "data.name", "model.lr"} < {*changed}
    assert {f"privacy.{field.name}" for field in dataclasses.fields(PrivacySettings)} < {*changed}
    for key in changed:
        other = with_another(run.settings, key.split("."))
        assert values_of(other)[key] != stored[key]
        if key in MAY_DIFFER:
            RunFolder.open(run.path, other)
            continue
        with pytest.raises(UserError, match=re.escape(f"with another '{key}'")):
            RunFolder.open(run.path, other)


def with_another(section: Any, path: Sequence[str]) -> Any:
    """Settings of which one has another value, past the checks of its section."""
    found = copy.copy(section)
    old = getattr(section, path[0])
    new = with_another(old, path[1:]) if len(path) > 1 else ("another", old)
    object.__setattr__(found, path[0], new)
    return found


def test_resume_finds_the_newest_unfinished_run(toy: Paper) -> None:
    wanted = settings(toy, "--resume")
    with pytest.raises(UserError) as caught:
        resumable(toy, wanted)
    assert str(caught.value) == (
        "no unfinished run runs/toyrec/sample-avg-mf-seed0 with these settings: leave --resume out "
        "to start one, name another by --run.name, or give a finished one of a single block more "
        "--rounds"
    )
    first, second, third = (create(toy) for _ in range(3))
    assert resumable(toy, wanted) == third.path
    third.write_summary(DONE)
    assert resumable(toy, wanted) == second.path
    second.write_summary(DONE)
    first.write_summary(DONE)
    with pytest.raises(UserError, match="no unfinished run"):
        resumable(toy, wanted)


def test_resume_finds_the_newest_run_of_the_same_settings(toy: Paper) -> None:
    first, other = create(toy), create(toy, "--model.lr", "3")
    assert resumable(toy, settings(toy, "--resume")) == first.path
    assert resumable(toy, settings(toy, "--resume", "--model.lr", "3")) == other.path
    third = create(toy, "--rounds", "20")
    third.write_summary(DONE)
    assert resumable(toy, settings(toy, "--resume", "--rounds", "30")) == third.path
    assert resumable(toy, settings(toy, "--resume", "--rounds", "20")) == first.path


def test_stored_settings_are_the_base_of_a_resumed_run(toy: Paper) -> None:
    run = create(toy, "--model.lr", "0.7", "--rounds", "30")
    base = stored_settings(run.path)
    again = configure(toy, ["--resume", "--rounds", "40"], base).settings
    assert (again.model.lr, again.rounds, again.algorithm.beta) == (0.7, 40, 0.8)
    assert RunFolder.for_settings(toy, again).path == run.path


def refusal(path: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        RunFolder.open(path)
    return str(caught.value)


def test_missing_and_damaged_folders(toy: Paper) -> None:
    assert refusal("runs/toyrec/x") == "there is no run runs/toyrec/x: check the path"
    run = create(toy, "--run.name", "mine")
    assert refusal("runs/toyrec/min") == "there is no run runs/toyrec/min: did you mean 'mine'?"
    assert refusal("runs") == "runs is not the folder of a run: it has no config.yaml"
    config = run.path / "config.yaml"
    config.write_text("seed: 1\n")
    assert refusal(run.path) == f"{config} does not name its paper, as 'paper: f3crec'"
    config.write_text("paper: toyrek\n")
    assert refusal(run.path) == "paper 'toyrek' is not installed: did you mean 'toyrec'?"
    config.write_text("paper: toyrec\nrounds: x\n")
    assert refusal(run.path) == f"'rounds' in {config}, line 2: expected a whole number, not 'x'"


def test_missing_and_damaged_json(toy: Paper) -> None:
    run = create(toy, "--run.name", "mine")
    with pytest.raises(UserError) as caught:
        run.read_json("summary.json")
    assert str(caught.value) == (
        "runs/toyrec/mine has no summary.json: the run did not come to its end"
    )
    (run.path / "summary.json").write_text('{"seed": 1,\n')
    with pytest.raises(UserError) as caught:
        run.read_json("summary.json")
    assert str(caught.value).startswith("runs/toyrec/mine/summary.json, line 2: damaged, ")
