"""Processes that are started again when they die, and all end together. Torch-free.

Flower's processes start others, some in sessions of their own, which outlive them. So each is
marked in its environment, which those inherit, and what bears the mark ends with it. Where this
process itself is killed, its guard sees to that.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from coterie.core.files import writing
from coterie.core.flower.guard import guarded
from coterie.core.flower.marks import is_zombie, marked, with_marks

_BOUND = (sys.executable, "-m", "coterie.core.flower.bound")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TAIL = 10_000  # bytes of a log that are looked at
_FIRST, _LONGEST = 1.0, 10.0  # seconds before a process is started again, doubling
_STEADY = 60.0  # seconds after which one that ran so long is no failing one
_GRACE = 5.0  # seconds that a process has to end by itself
_LOOK = 60.0  # seconds between two looks at the size of a log
_MOST_LOG = 10_000_000  # bytes of a log, of which one older one is kept


class Kept:
    """A process that is started again, after a pause, whenever it ends.

    Args:
        command: gives the words of the process, anew at each start.
        log: file that gets its output.
        environment: of the process, beside this one's.
        once: exit statuses with which it is not started again.
    """

    def __init__(
        self,
        command: Callable[[], Sequence[str]],
        log: Path,
        environment: Mapping[str, str] | None = None,
        once: Sequence[int] = (),
    ) -> None:
        self._command, self.log, self._once = command, log, once
        self._mark = os.urandom(8).hex()
        marks = with_marks(guarded(), self._mark)  # and those of supervisors above
        self._environment = {**os.environ, **(environment or {}), **marks}
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.status: int | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._spawn()
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def over(self) -> bool:
        """Whether it has ended, and is not started again."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """End it, and all that it has started."""
        self._stop.set()
        self._sweep(signal.SIGTERM)
        until = time.monotonic() + _GRACE
        while self._alive() and time.monotonic() < until:
            time.sleep(0.05)
        self._sweep(signal.SIGKILL)
        self._thread.join(_GRACE)

    def _spawn(self) -> None:
        with writing(self.log, "then start it again"):
            self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*_BOUND, str(os.getpid()), *self._command()],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    umask=0o077,
                    start_new_session=True,  # Ctrl-C is for the supervisor, which ends them
                )
        self.starts += 1

    def _keep(self) -> None:
        pause = _FIRST
        while not self._stop.is_set():
            assert self._process is not None
            began = time.monotonic()
            self.status = self._waited(self._process)
            if self._stop.is_set() or self.status in self._once:
                return
            self._sweep(signal.SIGKILL)  # what it has left behind
            pause = _FIRST if time.monotonic() - began > _STEADY else pause
            if self._stop.wait(pause):
                return
            pause = min(2 * pause, _LONGEST)
            with suppress(Exception):  # a full disk: tried again
                self._spawn()

    def _waited(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a process; a log that is full is put aside meanwhile."""
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK)
            with suppress(OSError):
                if self.log.stat().st_size > _MOST_LOG:  # the process appends, wherever it ends
                    shutil.copyfile(self.log, self.log.with_suffix(".old"))
                    os.truncate(self.log, 0)

    def _alive(self) -> list[int]:
        return [pid for pid in marked(self._mark) if pid != os.getpid()]

    def _sweep(self, number: signal.Signals) -> None:
        for pid in self._alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        process = self._process
        if process is not None and process.poll() is None:  # where there is no /proc
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)


def alive(pid: int) -> bool:
    """Whether a process of this machine goes on; one that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
        return not is_zombie(pid)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's, or no /proc here
        return True


def last_line(log: Path) -> str:
    """What a process said last that is more than a rule or a blank."""
    text = ""
    with suppress(OSError), log.open("rb") as file:
        file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
        text = file.read().decode(errors="replace")
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines()]
    told = [line for line in lines if re.search(r"\w", line.removeprefix("INFO :"))]
    return told[-1] if told else f"see {log}"
