"""Files of one's own and what is cut from them, beside pandas.

``python -m benchmarks.core.data.own_files [ROWS [CUT_ROWS]]`` measures other sizes than
``coterie bench f3crec`` does.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.core.data import ways
from benchmarks.core.data.ways import Found, write_csv
from benchmarks.core.timing import Row, in_a_process, row

ROWS = 500_000
CUT_ROWS = 2_000_000
_TURNS = 2  # processes that read a file
_SMALL = 1_000  # rows of the file that is read before
_UNIT = "CPU s"


def measure(rows: int = ROWS, cut_rows: int = CUT_ROWS) -> Iterator[Row]:
    """Read CSV files, then cut interactions; each in a process of its own, on one thread.

    Args:
        rows: of each file.
        cut_rows: that are filtered, cut into blocks and split.

    Yields:
        Rows as of `benchmarks.core.timing.row`. The ``reference`` is pandas: `pandas.read_csv`
        and its numbering of users and items, or the same cuts. ``max_abs_diff`` is 0 where the
        results are equal, infinite where they are not.

    Raises:
        UserError: a measurement failed, for lack of memory for instance.
    """
    for text in (True, False):
        yield read(rows, text)
    yield from cut(cut_rows)


def read(rows: int, text: bool) -> Row:
    """Read a file by turns; the figures are medians."""
    name = f"own CSV, {rows:,} rows, ids {'text' if text else 'whole numbers'}"
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "own.csv", Path(folder) / "small.csv"
        write_csv(path, rows, text)
        write_csv(small, _SMALL, text)
        turns = [
            [_run(way, name, str(path), str(small)) for way in ("read_ours", "read_pandas")]
            for _ in range(_TURNS)
        ]
    ours, pandas = (
        {key: statistics.median(found[key] for found in founds) for key in founds[0]}
        for founds in zip(*turns, strict=True)
    )
    return _row(name, ours, pandas)


def cut(rows: int) -> Iterator[Row]:
    """Filter, cut into blocks and split."""
    what = f"{rows:,} rows"
    ours = _run("cut_ours", what, rows)
    pandas = _run("cut_pandas", what, rows)
    for name, found in ours.items():
        yield _row(f"{name}, {what}", found, pandas.get(name))


def report(rows: int, cut_rows: int) -> Iterator[str]:
    """Say what was measured, a line each."""
    for each in measure(rows, cut_rows):
        shown = (f"{key} {value:.3g}" for key, value in each.items() if isinstance(value, float))
        yield f"{each['name']}: {', '.join(shown)}\n"


def _run(function: str, what: str, *arguments: object) -> Found:
    found: Found = in_a_process(f"{ways.__name__}:{function}", what, *arguments)
    return found


def _row(name: str, ours: Found, pandas: Found | None) -> Row:
    found = row(name, _UNIT, ours["seconds"])
    if pandas:
        differ = 0.0 if ours["check"] == pandas["check"] else float("inf")
        found = row(name, _UNIT, ours["seconds"], pandas["seconds"], differ)
        found["reference adds MB"] = pandas["adds MB"]
    return found | {"adds MB": ours["adds MB"], "peak MB": ours["peak MB"]}


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    for line in report(*(given + [ROWS, CUT_ROWS][len(given) :])):
        sys.stdout.write(line)
        sys.stdout.flush()
