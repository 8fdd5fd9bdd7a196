"""A checkpoint says when it was damaged: every flipped bit, every cut."""

import errno
import os

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.run.checkpoint import read_checkpoint
from coterie.core.tensors.saved import load, save

CONTENT = {"federation": {"rows": torch.arange(5000.0), "round": 3}, "callbacks": {}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "last.ckpt"
    save(CONTENT, path)
    return path


def test_a_whole_file_is_read_and_torch_reads_it_too(file):
    for found in (read_checkpoint(file), torch.load(file, weights_only=True)):
        assert torch.equal(found["federation"]["rows"], CONTENT["federation"]["rows"])
        assert found["federation"]["round"] == 3
    assert [path.name for path in file.parent.iterdir()] == ["last.ckpt"]


def test_a_flipped_bit_is_refused_wherever_it_is(file):
    whole = file.read_bytes()
    places = {*range(0, len(whole), 397), *range(len(whole) - 110, len(whole))}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"checkpoint .*last\.ckpt is damaged \(it"):
            load(file)


def test_a_cut_and_an_addition_are_refused(file):
    whole = file.read_bytes()
    for left in (0, 1, 73, 74, 500, len(whole) // 2, len(whole) - 73, len(whole) - 1):
        file.write_bytes(whole[:left])
        with pytest.raises(UserError, match="is damaged"):
            load(file)
    for longer in (whole + b"\0", b"\0" + whole, whole + whole):
        file.write_bytes(longer)
        with pytest.raises(UserError, match="is damaged"):
            load(file)


def test_a_file_of_torch_alone_has_no_digest(file):
    torch.save(CONTENT, file)
    with pytest.raises(UserError, match="it has no digest: cut short, or of an older version"):
        load(file)


def test_what_may_not_be_read_is_not_called_damaged(file, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(type(file), "open", refused)
    with pytest.raises(UserError, match=r"cannot read .*last\.ckpt \(permission denied\)"):
        load(file)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_the_disk_and_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()
    opened = type(file).open
    monkeypatch.setattr(
        type(file), "open", lambda path, mode: opened(type(file)("/dev/full"), mode)
    )
    with pytest.raises(OSError, match="No space left") as caught:
        save({"much": torch.zeros(1_000_000)}, file)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert file.read_bytes() == before


def test_a_process_killed_while_writing_leaves_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def killed(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        save({"other": torch.zeros(9)}, file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["last.ckpt"]


def test_twenty_of_twenty_damaged_runs_are_refused_in_one_line(tmp_path, capsys):
    small = ["--preset=smoke", "--rounds=1", "--model.dim=4", "--logger.wandb=off"]
    assert main(["train", "f3crec", *small, f"--run.out={tmp_path}", "--run.name=one"]) == 0
    run = tmp_path / "f3crec" / "one"
    last = run / "checkpoints" / "last.ckpt"
    whole = last.read_bytes()
    for number in range(20):
        damaged = bytearray(whole)
        damaged[len(whole) * number // 20 + 17] ^= 1 << number % 8
        last.write_bytes(damaged)
        capsys.readouterr()
        if number < 18:
            words = ["evaluate", "--run", str(run)]
        else:
            words = ["train", "f3crec", *small, f"--run.out={tmp_path}", "--run.name=one"]
            words += ["--rounds=2", "--resume"]
        assert main(words) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        assert f"checkpoint {last} is damaged" in line
        assert "put back a copy of it, or train anew under another --run.name" in line
