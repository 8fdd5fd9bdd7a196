"""Work that may end its process, in forks of a process that has imported what the work needs.

An import of torch and Lightning takes longer than a small run. To be called in a process without
threads of its own, so not in that of the tests.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def status(work: Callable[[], object]) -> int:
    """Do the work in a fork: its exit status, or minus the signal that ended it."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:  # noqa: TID251
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
