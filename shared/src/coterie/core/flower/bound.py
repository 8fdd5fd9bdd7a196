"""Become another program that ends with its parent, by a kill of that too, where Linux can say so.

``python -m coterie.core.flower.bound PARENT PROGRAM ARGUMENT ...``, PARENT being a process number.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent, and become the program; nothing if the parent is gone."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:  # else it has died since it started this
        os.execvp(program[0], program)


if __name__ == "__main__":
    main()
