"""Processor time of functions where they are, by label, on one thread."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

Place = tuple[Any, str, str]
"""An object, class or module, the name of a function in it, and the label of its time."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread for as long as the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Stopwatch:
    """Time by label; what is measured inside of another function is taken off that one.

    Attributes:
        clock: in seconds; processor time by default, so that other work does not count.
        seconds: by label.

    Example:
        >>> now = iter([0.0, 1.0, 3.0, 10.0])
        >>> watch = Stopwatch(lambda: next(now))
        >>> inner = watch.timed("inner", lambda: None)
        >>> watch.timed("outer", inner)()
        >>> dict(watch.seconds)
        {'inner': 2.0, 'outer': 8.0}
    """

    clock: Callable[[], float] = time.process_time
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inside: list[float] = field(default_factory=list, repr=False)

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that notes its time."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                whole = self.clock() - began
                self.seconds[label] += whole - self._inside.pop()
                if self._inside:
                    self._inside[-1] += whole

        return call

    @contextmanager
    def on(self, places: Iterable[Place]) -> Iterator[None]:
        """Measure the functions at some places, for as long as the context is open."""
        undo: list[Callable[[], None]] = []
        try:
            for owner, name, label in places:
                undo.append(_restoring(owner, name))
                setattr(owner, name, self.timed(label, getattr(owner, name)))
            yield
        finally:
            for restore in reversed(undo):
                restore()


def _restoring(owner: Any, name: str) -> Callable[[], None]:
    """Give what brings an attribute back: an instance's method is its class's again."""
    if name in vars(owner):
        before = vars(owner)[name]
        return lambda: setattr(owner, name, before)
    return lambda: delattr(owner, name)
