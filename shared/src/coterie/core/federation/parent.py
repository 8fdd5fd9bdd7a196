"""A process that ends with its parent, in the middle of whatever it does. Torch-free.

A worker learns from its stream that its server has ended, but looks there only between two pieces
of work: a step may take minutes, for nobody.
"""

from __future__ import annotations

import os
import threading
import time

_LOOK = 0.5  # seconds between two looks
_ORPHANED = 1  # exit status


def end_with_parent() -> None:
    """End this process when its parent has ended; what it keeps on disk is whole at any moment."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(_ORPHANED)
