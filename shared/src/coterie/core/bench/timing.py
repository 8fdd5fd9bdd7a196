"""Timing: works that take turns, and functions where they are; and the rows of a benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from coterie.core.errors import UserError

Row = dict[str, Any]
"""``name, unit, ours, reference, ratio, max_abs_diff``."""
CPU_MS = "CPU ms a round"
Place = tuple[Any, str, str]
"""An object, class or module, the name of a function in it, and the label of its time."""


def row(
    name: str,
    unit: str,
    ours: float | None,
    reference: float | None = None,
    max_abs_diff: float | None = None,
    share: bool = False,
) -> Row:
    """Make a row of a benchmark: a figure, what it is compared with, and how far results differ.

    The ratio is that of the reference to ours, or the other way with ``share``.

    Example:
        >>> row("a round", "ms", 2.0, 8.0)["ratio"]
        4.0
    """
    ratio = None
    if ours is not None and reference is not None:
        ratio = ours / reference if share else reference / ours
    values = {"ours": ours, "reference": reference, "ratio": ratio, "max_abs_diff": max_abs_diff}
    return {"name": name, "unit": unit} | values


def in_turns(
    works: Mapping[str, Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Let all take turns, so that what disturbs one disturbs all.

    Args:
        works: what is timed, by name.
        turns: of each, after one to warm up.
        clock: in seconds; processor time by default, so that other work does not count.

    Returns:
        Milliseconds of every turn, by name.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns + 1):
        for name, work in works.items():
            began = clock()
            work()
            found[name].append(1e3 * (clock() - began))
    return {name: times[1:] for name, times in found.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread for as long as the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_a_process(function: str, what: str, *arguments: Any) -> Any:
    """Call a function in a process of its own, whose memory is its own.

    Args:
        function: as ``module:name``; what it returns is written as JSON.
        what: is measured, for people.
        arguments: plain values, written as JSON too.

    Raises:
        UserError: it failed, for lack of memory for instance.
    """
    command = [sys.executable, "-m", __package__, function, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise UserError(f"measuring {what} failed: {last}")
    return json.loads(done.stdout)


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
