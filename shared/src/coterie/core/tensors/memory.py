"""Memory that was freed is kept for the next chunk, not given back to the system and asked anew.

glibc returns every large block at once. Each page of the next one has to be mapped and cleared
again: measured, 8 to 15 % of a round in which a chunk makes and drops some megabytes.
"""

from __future__ import annotations

import ctypes
import functools

KEPT = 128 << 20
"""Bytes that a process may hold beside what it uses."""
_LARGEST = 64 << 20  # bytes of a block that is kept; in larger ones there is more to do
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@functools.cache
def keep_freed() -> bool:
    """Ask the C library to keep freed memory; return whether it does, which others cannot."""
    mallopt = getattr(_process(), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, KEPT))


def _process() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no handle of the process itself
        return None
