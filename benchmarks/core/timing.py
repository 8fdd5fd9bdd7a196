"""The rows of a benchmark, works that take turns, and works in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.registry.papers import load

Row = dict[str, Any]
"""``name, unit, ours, reference, ratio, max_abs_diff``."""
CPU_MS = "CPU ms a round"
_CLONE = str(Path(__file__).resolve().parents[2])


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


def in_two_processes(
    name: str,
    unit: str,
    one: Callable[[], object],
    two: Callable[[], object],
    difference: float,
    turns: int = 11,
) -> Row:
    """Compare work in two processes with the same in one, in wall time.

    The fastest of each are: other work only ever adds time, and that on this machine, or of its
    neighbours on the host, delays two processes far more often than one.

    Args:
        name: of the work.
        unit: of the row.
        one: the work in one process.
        two: in two.
        difference: largest one of their results.
        turns: of each.
    """
    found = in_turns({"one": one, "two": two}, turns, time.perf_counter)
    fastest = {processes: min(times) for processes, times in found.items()}
    label = f"{name}; two processes, one"
    return row(label, unit, fastest["two"], fastest["one"], difference)


def in_a_process(function: str, what: str, *arguments: Any) -> Any:
    """Call a function in a process of its own, whose memory is its own.

    Args:
        function: as ``module:name``; what it returns is written as JSON.
        what: is measured, for people.
        arguments: plain values, written as JSON too.

    Raises:
        UserError: it failed, for lack of memory for instance.
    """
    # Of the current folder nothing is imported: it may have benchmarks of its own.
    command = [sys.executable, "-P", "-m", "benchmarks.core.timing", function]
    command.append(json.dumps(arguments))
    path = os.pathsep.join([_CLONE, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise UserError(f"measuring {what} failed: {last}")
    return json.loads(done.stdout)


def main() -> None:
    """Call what `in_a_process` names, here, and print its result as JSON."""
    function, arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(load(function)(*json.loads(arguments))))


if __name__ == "__main__":
    main()
