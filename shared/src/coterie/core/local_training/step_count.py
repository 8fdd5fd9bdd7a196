"""Counting local gradient steps where all local training passes, whatever the method.

A method that lets its clients choose their epochs, or trains two models in a round, is then
compared by the work that it really does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class StepCount:
    """Gradient steps counted so far, the sum over clients."""

    total: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, number: int) -> None:
        """Count more; chunks may be trained by several threads."""
        with self.lock:
            self.total += number


_OPEN: ContextVar[StepCount | None] = ContextVar("open count of steps", default=None)


@contextmanager
def counting_steps() -> Iterator[StepCount]:
    """Count the steps made inside; an inner count takes the place of the outer one.

    Example:
        >>> with counting_steps() as made:
        ...     count_steps(3)
        ...     with not_counting_steps():
        ...         count_steps(5)
        >>> made.total
        3
    """
    count = StepCount()
    before = _OPEN.set(count)
    try:
        yield count
    finally:
        _OPEN.reset(before)


@contextmanager
def not_counting_steps() -> Iterator[None]:
    """Leave the steps made inside out of the count, as those of an evaluation."""
    before = _OPEN.set(None)
    try:
        yield
    finally:
        _OPEN.reset(before)


def count_steps(number: int) -> None:
    """Add to the count that is open, if there is one."""
    count = _OPEN.get()
    if count is not None:
        count.add(number)
