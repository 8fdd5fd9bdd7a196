"""Ctrl-C and checkpoints that cannot be read: one line each, and it is true.

Ctrl-C is pressed in real processes, in a table of this one. What they advise is followed here.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coterie.core.cli.main import main
from coterie.core.run.driver import FederatedRun
from coterie.core.tables import catalogue
from coterie.core.tables.jobs import Counting

pytestmark = pytest.mark.long

PATIENCE = 120.0  # seconds, on a machine that does other things
# On one core, a table has one worker. Started in the background, pytest and so its children would
# ignore Ctrl-C. That is set here: what Popen would run in a fork of a worker of pytest may crash
# there, in the threads of what other tests have imported (gRPC's did in 7 of 822 forks).
COTERIE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "os.cpu_count = lambda: 1; from coterie.core.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
QUIET = ["--logger.wandb", "off", "--run.progress", "false"]
# A first round of minutes: PAGE's clients make as many steps as they are told to.
ENDLESS = ["page", "--method", "fedavg", "--preset", "smoke", "--train.epochs", "100000"]


def start(*words: str, folder: Path, through: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*through, sys.executable, "-c", COTERIE, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def interrupted(
    *words: str, folder: Path, when: Callable[[int], bool], after: float = 0.0
) -> tuple[int, str]:
    """Press Ctrl-C in the terminal of a command as soon as something holds; status and stderr.

    What is to hold is asked with the number of the process.
    """
    process, began = start(*words, folder=folder), time.monotonic()
    while not when(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.005)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    return process.returncode, err


def advised(err: str, start: str) -> list[str]:
    """The command that the one line on stderr advises."""
    assert err.startswith(f"coterie: {start}"), err
    assert err.count("\n") == 1, err
    words = shlex.split(err.split(", say: ")[1])
    assert words.pop(0) == "coterie"
    return words


def ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def test_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(_: int) -> bool:
        return any(tmp_path.glob("runs/page/*/config.yaml"))

    status, err = interrupted("train", *ENDLESS, *QUIET, folder=tmp_path, when=made, after=0.5)
    assert status == 130
    again = advised(err, "interrupted before a round was saved; to begin again")
    assert again == ["train", *ENDLESS, *QUIET, "--resume"]
    (run,) = tmp_path.glob("runs/page/*")
    assert not (run / "checkpoints" / "last.ckpt").exists()
    # The advice is accepted, and goes on in the same folder.
    began = (run / "config.yaml").stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FederatedRun, "advance", ctrl_c)
    assert main(again) == 130
    assert advised(capsys.readouterr().err, "interrupted before a round was saved") == again
    assert (run / "config.yaml").stat().st_mtime_ns > began
    assert list(tmp_path.glob("runs/page/*")) == [run]


def test_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["f3crec", "--rounds", "12", "--model.dim", "8", *QUIET]

    def saved(_: int) -> bool:
        return any(tmp_path.glob("runs/f3crec/*/checkpoints/last.ckpt"))

    status, err = interrupted("train", *flags, folder=tmp_path, when=saved)
    assert status == 130
    again = advised(err, "interrupted; to go on")
    assert again == ["train", *flags, "--resume"]
    (run,) = tmp_path.glob("runs/f3crec/*")
    assert not (run / "summary.json").exists()
    monkeypatch.chdir(tmp_path)
    assert main(again) == 0
    assert json.loads((run / "summary.json").read_text())["rounds"] > 4


def torch_is_loaded(process: int) -> bool:
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("after", [0.0, 0.3])
def test_while_torch_is_imported(after: float, tmp_path: Path) -> None:
    status, err = interrupted("train", "f3crec", folder=tmp_path, when=torch_is_loaded, after=after)
    assert status == 130
    assert advised(err, "interrupted before anything was saved") == ["train", "f3crec"]
    assert not (tmp_path / "runs").exists()


def test_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table", "f3crec", "--table", "3", "--seeds", "1", "--rounds", "1", *QUIET]
    words += ["--model.dim", "4"]
    cache = tmp_path / "runs" / "f3crec" / "tables" / "cache"

    def kept() -> set[Path]:
        return {path for path in cache.glob("*.json") if not path.name.startswith(".")}

    def pressed(*_: object) -> None:
        if kept():  # the base block is no run of the table
            signal.raise_signal(signal.SIGINT)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "worker_count", lambda: 0)
    monkeypatch.setattr(Counting, "done", pressed)
    advice = "interrupted; the runs that are done are kept; to go on"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(words) == 130
        again = advised(capsys.readouterr().err, advice)
        assert again == words
        done = {path: path.stat().st_mtime_ns for path in kept()}
        assert len(done) == 1
        # The next job is made, and it is a new one.
        assert main(again) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert advised(capsys.readouterr().err, advice) == words
    assert len(kept()) == len(done) + 1
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    flags = ["--preset", "smoke", "--run.out", str(folder / "runs"), *QUIET]
    assert main(["train", "f3crec", *flags]) == 0
    (found,) = folder.glob("runs/f3crec/*")
    return found


def refused(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    status = main(["evaluate", "--run", str(run)])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_a_flipped_bit_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = run / "checkpoints" / "last.ckpt"
    whole = checkpoint.read_bytes()
    try:
        checkpoint.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
        assert "last.ckpt is damaged (its digest is another): put back a copy" in refused(
            run, capsys
        )
    finally:
        checkpoint.write_bytes(whole)


def test_what_is_no_file_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = run / "checkpoints" / "last.ckpt"
    aside = checkpoint.rename(checkpoint.with_name("aside"))
    try:
        checkpoint.mkdir()
        assert "has no checkpoint" in refused(run, capsys)
        checkpoint.rmdir()
        checkpoint.symlink_to(checkpoint)
        assert "has no checkpoint" in refused(run, capsys)
        checkpoint.unlink()
    finally:
        aside.rename(checkpoint)


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads all")
def test_a_file_that_may_not_be_read_is_said(run: Path) -> None:
    as_others = "setpriv", "--bounding-set=-dac_override,-dac_read_search"
    checkpoint = run / "checkpoints" / "last.ckpt"
    checkpoint.chmod(0)
    try:
        through = as_others if os.geteuid() == 0 else ()
        process = start("evaluate", "--run", str(run), folder=run.parent, through=through)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err.count("\n")) == (2, "", 1)
        assert "last.ckpt (permission denied): mend that" in err
    finally:
        checkpoint.chmod(0o644)
