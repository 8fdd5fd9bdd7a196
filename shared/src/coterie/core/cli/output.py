"""What commands print: tables for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.core.files import finite
from coterie.core.tables.report import Report
from coterie.core.terminal import console as as_it_stands
from coterie.core.terminal import one_line

_PIPE_WIDTH = 200  # columns where no terminal tells its own


def console() -> Any:
    """Make a console on stdout, wide where the output goes into a file or a pipe."""
    return as_it_stands(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def say(line: str) -> None:
    """Print a line as it is."""
    sys.stdout.write(f"{line}\n")


@contextmanager
def aside(active: bool) -> Iterator[None]:
    """Send what others print to stderr, so that stdout holds JSON lines only."""
    with redirect_stdout(sys.stderr) if active else nullcontext():
        yield


def print_json(row: Any) -> None:
    """Print one JSON object on one line; numbers that are not finite become null."""
    say(json.dumps(finite(row), ensure_ascii=False))


def print_rows(
    rows: Iterable[Mapping[str, Any]],
    title: str | None = None,
    as_json: bool = False,
    style: Callable[[Mapping[str, Any]], str | None] = lambda row: None,
) -> None:
    """Print rows with equal keys as a table, numbers to the right; or as JSON, one a line."""
    rows = list(rows)
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table()
    for name in columns:
        numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(one_line(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell(row.get(name)))) for name in columns), style=style(row))
    if title:
        say(one_line(title))  # a title of the table would be folded to the width of narrow columns
    console().print(table)


def print_report(report: Report, saved: Path) -> None:
    """Print a report for people, and where it was written."""
    print_rows(report.view or report.rows, title=report.title)
    for note in report.notes:
        say(note)
    say(f"Written to {one_line(str(saved))}")


def cell(value: Any) -> str:
    """Write a value for a table.

    Example:
        >>> cell(58771), cell(0.10341), cell(None), cell(["a", "b"])
        ('58,771', '0.1034', '-', 'a, b')
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
