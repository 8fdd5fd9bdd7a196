"""Two processes, one run folder."""

import os
import socket

import pytest

from coterie.core.cli.main import main
from coterie.core.run.lock import LOCK, held
from coterie.core.run.metrics_file import MetricsFile

RUN = ["train", "f3crec", "--preset", "smoke", "--logger.wandb", "off", "--run.name", "one"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped after two rounds."""
    out = tmp_path_factory.mktemp("out")
    assert main([*RUN, "--out", str(out), "--trainer.max_epochs", "2"]) == 0
    return out / "f3crec" / "one"


WHO = f"is being trained by process {os.getpid()} on {socket.gethostname()}: wait for its end"


@pytest.mark.parametrize("more", [["--resume"], [], ["--resume", "--rounds", "9"]])
def test_the_second_is_told_and_changes_nothing(run, capsys, more):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    with held(run):
        assert main([*RUN, "--out", str(run.parents[1]), *more]) == 2
    err = capsys.readouterr().err
    assert WHO in err
    assert err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def test_evaluating_meanwhile_is_fine(run, capsys):
    with held(run):
        assert main(["evaluate", "--run", str(run)]) == 0


def test_a_run_holds_its_own_lock_while_it_trains(run, monkeypatch):
    seen, put = [], MetricsFile.write
    monkeypatch.setattr(
        MetricsFile, "write", lambda *given: (seen.append((run / LOCK).read_text()), put(*given))[1]
    )
    assert main([*RUN, "--out", str(run.parents[1]), "--resume", "--trainer.max_epochs", "4"]) == 0
    assert set(seen) == {f"process {os.getpid()} on {socket.gethostname()}"}
    assert not (run / LOCK).exists()
