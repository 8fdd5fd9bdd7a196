"""Become another program that ends with its parent, by a kill of that too, where Linux can say so.

``python -m coterie.core.flower.bound PROGRAM ARGUMENT ...``
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent, and become the program."""
    parent = os.getppid()
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:  # it did not die in between
        os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
