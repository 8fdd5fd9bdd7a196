"""Whether compiled kernels are used. Imports neither torch nor numba."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

ENOUGH = 100_000
"""Numbers to draw from which on it pays to load the kernels, which takes about half a second."""
_LOOPS = "coterie.core.kernels.compiled"
_allowed = True


@cache
def installed() -> bool:
    """Whether numba is there; it comes with coterie-core, but an environment may lack it."""
    return find_spec("numba") is not None


def allow(wanted: bool) -> None:
    """Let this process use kernels, or not; it may from the start."""
    global _allowed
    _allowed = wanted


def available() -> bool:
    """Whether kernels may be used here: numba is installed, and nobody forbade it."""
    return _allowed and installed()


def loaded() -> bool:
    """Whether this process has loaded kernels."""
    return _LOOPS in sys.modules


def worthwhile(draws: int) -> bool:
    """Whether to draw so many numbers by a kernel: what is drawn does not depend on it."""
    return available() and (draws >= ENOUGH or loaded())


@contextmanager
def kernels(wanted: bool) -> Iterator[None]:
    """Allow or forbid kernels for a while, for tests and comparisons.

    Example:
        >>> with kernels(False):
        ...     available()
        False
    """
    before = _allowed
    allow(wanted)
    try:
        yield
    finally:
        allow(before)
