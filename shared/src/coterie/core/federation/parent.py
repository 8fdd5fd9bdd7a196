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


def end_with_parent(parent: int | None = None) -> None:
    """End this process when its parent has ended; what it keeps on disk is whole at any moment.

    Args:
        parent: its id; by default that of who is the parent now.
    """
    watched = os.getppid() if parent is None else parent
    threading.Thread(target=_watch, args=(watched,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(_ORPHANED)
