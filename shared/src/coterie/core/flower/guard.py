"""Wait for the end of the parent, whatever ends it, and then end all that bears its mark.

``python -m coterie.core.flower.guard MARK``, with a pipe as standard input whose other end the
parent alone has. Flower's SuperExec, ServerApp and what that starts are in sessions of their own:
a parent that is killed cannot end them any more, and they go on for minutes, or for good.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache

from coterie.core.flower.marks import marked

_PAUSE = 0.05  # seconds between two looks: what is being started bears the mark a little later


def main() -> None:
    """Wait, then end what is there until nothing is."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # these are for the parent
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    mark = sys.argv[1]
    while found := marked(mark):
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def guarded() -> str:
    """The mark of what is to end with this process, a kill of it too; starts the guard once."""
    return _guard_of(os.getpid())[0]


@cache
def _guard_of(pid: int) -> tuple[str, subprocess.Popen[bytes]]:
    """Of a process: one that was forked off has a guard of its own."""
    mark = os.urandom(8).hex()
    guard = subprocess.Popen(
        [sys.executable, "-m", "coterie.core.flower.guard", mark],
        stdin=subprocess.PIPE,  # closed by the kernel when this process ends
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to the group of this process is not for it
    )
    return mark, guard


if __name__ == "__main__":
    main()
