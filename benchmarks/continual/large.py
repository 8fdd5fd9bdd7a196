"""A curve to a million clients on random data: ``python -m benchmarks.continual.large [OUT]``.

The last size has 20 interactions a client, the others 60. It takes some minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.continual.measure import plot
from benchmarks.continual.sizes import SIZES, grow
from coterie.continual.settings import Settings

MILLION = 1_000_000
_SHORT = 20  # interactions of each of a million clients


def line(row: dict[str, Any]) -> str:
    """Say what one size took."""
    every, test = (row[f"seconds a {name}"] for name in ("validation", "test"))
    return (
        f"{row['name']}: {row['seconds a round']:.2f} CPU s a round, validation {every:.2f} "
        f"({every / row['seconds a round']:.0%}), test of all {test:.2f}; "
        f"{row['data and state MB']:,.0f} MB of data and state, a round adds "
        f"{row['a round adds MB']:,.0f}, a test {row['a test adds MB']:,.0f}; "
        f"{row['peak MB']:,.0f} MB at most\n"
    )


def curve(sizes: tuple[int, ...] = SIZES, large: int = MILLION) -> Iterator[dict[str, Any]]:
    """Measure all sizes, each in a process of its own; errors as for `grow`."""
    return chain(grow(Settings(), sizes), grow(Settings(), (large,), _SHORT))


def report(folder: Path) -> None:
    """Measure, say so line by line, and draw ``scaling.png``."""
    rows = []
    for row in curve():
        rows.append(row)
        sys.stdout.write(line(row))
        sys.stdout.flush()
    sys.stdout.write(f"{plot(rows, folder / 'scaling.png')}\n")


if __name__ == "__main__":
    report(Path(sys.argv[1] if sys.argv[1:] else "."))
