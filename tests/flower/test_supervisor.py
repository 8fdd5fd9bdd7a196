"""Processes that are kept up, and end together with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from coterie.core.flower.supervisor import Kept, alive

PATIENCE = 30.0
# Starts another in a session of its own, as Flower's programs do, and says both numbers.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open(sys.argv[1], "a").write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""


def until(what, patience=PATIENCE):
    end = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def numbers(path, count):
    def found():
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines] if len(lines) >= count else None

    return until(found)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.core.flower.supervisor._FIRST", 0.05)
    said = tmp_path / "said"
    found = Kept(lambda: [sys.executable, "-c", PARENT, str(said)], tmp_path / "log" / "it.log")
    yield found, said
    found.end()


def test_what_dies_is_started_again_and_what_it_left_behind_ends(kept):
    one, said = kept
    ((parent, child),) = numbers(said, 1)
    os.kill(parent, signal.SIGKILL)
    _, (again, _) = numbers(said, 2)
    assert again not in (parent, child)
    until(lambda: not alive(child))
    assert one.starts == 2
    assert one.pid == again


def test_all_end_together(kept):
    one, said = kept
    (pair,) = numbers(said, 1)
    one.end()
    assert not any(map(alive, pair))
    assert one.over


def test_not_again_after_some_statuses(tmp_path):
    one = Kept(lambda: [sys.executable, "-c", "raise SystemExit(2)"], tmp_path / "log", once=(2,))
    until(lambda: one.over)
    assert (one.starts, one.status) == (1, 2)


def test_a_program_whose_parent_is_gone_is_not_begun(tmp_path):
    """The parent may die before its child can say that it wants to end with it."""
    words = [sys.executable, "-m", "coterie.core.flower.bound"]
    begin = [sys.executable, "-c", f"open({str(tmp_path / 'begun')!r}, 'w')"]
    subprocess.run([*words, "1", *begin], check=True)
    assert not (tmp_path / "begun").exists()
    subprocess.run([*words, str(os.getpid()), *begin], check=True)
    assert (tmp_path / "begun").exists()


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux alone can tell a child, and shows marks"
)


@linux
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_supervisor_leaves_nothing(how, tmp_path):
    """Nor what a child has started in a session of its own, as Flower's SuperExec does."""
    said = tmp_path / "said"
    script = f"""
import signal, sys, time
from pathlib import Path
from coterie.core.flower.supervisor import Kept
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup
words = [sys.executable, "-c", {PARENT!r}, {str(said)!r}]
Kept(lambda: words, Path({str(tmp_path)!r}) / "log")
while True: time.sleep(0.1)
"""
    supervisor = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    ((child, grandchild),) = numbers(said, 1)
    assert alive(child)
    assert alive(grandchild)
    os.killpg(supervisor.pid, how)
    assert supervisor.wait() == -how
    until(lambda: not alive(child) and not alive(grandchild), 10.0)


# A command that starts what `deploy up` and `certify-engines` do, in little.
COMMAND = """
import sys, tempfile, time
from pathlib import Path
from coterie.core.cli import main
from coterie.core.flower.supervisor import Kept

def trial(argv):
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", PARENT, SAID]
        kept = Kept(lambda: words, Path(folder) / "log")
        try:
            while True: time.sleep(0.1)
        finally:
            time.sleep(0.2)  # a second signal comes meanwhile
            kept.end()

sys.modules["trial"] = sys.modules["__main__"]
main.COMMANDS[sys.argv[1]] = ("", "trial:trial")
sys.exit(main.main(sys.argv[1:]))
"""


@linux
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["certify-engines", "page"], "interrupted"),
        (["deploy", "up", "d"], "interrupted; to go on, say: coterie deploy up d"),
    ],
    ids=lambda value: value[0],
)
def test_sigterm_has_a_command_clear_up(words, line, tmp_path):
    """Though `timeout` sends it twice: to the command, and to its group."""
    said, folders = tmp_path / "said", tmp_path / "folders"
    folders.mkdir()
    script = f"PARENT, SAID = {PARENT!r}, {str(said)!r}\n{COMMAND}"
    command = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folders)},
        start_new_session=True,
    )
    (pair,) = numbers(said, 1)
    assert list(folders.iterdir())
    os.kill(command.pid, signal.SIGTERM)
    time.sleep(0.1)
    os.killpg(command.pid, signal.SIGTERM)
    _, err = command.communicate(timeout=PATIENCE)
    assert (command.returncode, err) == (143, f"coterie: {line}\n")
    assert not any(map(alive, pair))
    assert not list(folders.iterdir())
