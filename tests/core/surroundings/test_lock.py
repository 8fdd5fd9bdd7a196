"""One process at a time trains in a run folder."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from coterie.core.errors import UserError
from coterie.core.run.lock import LOCK, held, holder

HOLD = (
    "import signal, sys, time; from pathlib import Path; from coterie.core.run.lock import held\n"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # which nohup around the tests would ignore
    "with held(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def other(tmp_path):
    """Another process that trains in the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_is_told_who_runs(other, tmp_path):
    who = f"process {other.pid} on {socket.gethostname()}"
    assert holder(tmp_path) == who
    with pytest.raises(UserError) as told, held(tmp_path):
        pytest.fail("both have it")
    assert str(told.value) == (
        f"{tmp_path} is being trained by {who}: wait for its end, or choose another --run.name"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_it_dies_with_its_process(other, tmp_path, number):
    other.send_signal(number)
    other.wait()
    assert holder(tmp_path) is None
    with held(tmp_path):
        assert holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    assert list(tmp_path.iterdir()) == []


def test_nor_twice_in_one_process(tmp_path):
    with held(tmp_path):
        with pytest.raises(UserError, match="is being trained by process"), held(tmp_path):
            pytest.fail("both have it")
        assert holder(tmp_path) is not None


def test_a_file_that_the_last_owner_removes_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """Between opening and locking: who locks a file that is gone locks out nobody."""
    from coterie.core.run import lock

    taken = lock._lock
    removed = []

    def late(descriptor, folder):
        if not removed:
            removed.append((folder / LOCK).unlink())
        taken(descriptor, folder)

    monkeypatch.setattr(lock, "_lock", late)
    with held(tmp_path):
        assert (tmp_path / LOCK).is_file()
        assert holder(tmp_path) is not None


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match=r"^cannot write .*\.lock"), held(tmp_path / "nowhere"):
        pytest.fail("there is no folder")


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    import errno
    import fcntl

    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with held(tmp_path):
        pass
    assert "has no locks" in caplog.text
