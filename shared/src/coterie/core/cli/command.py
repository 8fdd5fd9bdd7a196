"""What commands share: arguments with mistakes as one line, output for people and for programs."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from rich.text import Text

from coterie.core.errors import UserError
from coterie.core.files import finite
from coterie.core.registry.papers import Paper, find_paper, papers
from coterie.core.tables.report import Report
from coterie.core.terminal import console, facts, folded, table, width


class Arguments(argparse.ArgumentParser):
    """An ``argparse`` parser that raises `UserError` instead of printing its usage."""

    def __init__(self, command: str, about: str) -> None:
        super().__init__(prog=f"coterie {command}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments, naming the nearest right word.

        Raises:
            UserError: always.
        """
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            word = unknown[1].partition("=")[0]
            known = list(self._option_string_actions)
            whole = [name for name in known if name.endswith(f".{word.lstrip('-')}")]
            close = whole or difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"see {self.prog} --help"
            raise UserError(f"unknown argument '{word}': {hint}")
        raise UserError(f"{message} (see {self.prog} --help)")

    def of_paper(self, argv: Sequence[str]) -> tuple[Paper, argparse.Namespace, list[str]]:
        """Read the name of a paper, which comes first, and what of the rest are arguments.

        Returns:
            The paper, the arguments, and the other words, which are settings of the paper.

        Raises:
            UserError: the paper is unknown, or an argument is bad.
        """
        if wants_help(argv):
            self.print_help()
            self.exit()
        paper, rest = paper_first(argv, self.prog.split()[1])
        return paper, *self.parse_known_args(rest)


def positive(text: str) -> int:
    """Read a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, not '{text}'")
    return int(text)


def seeds(text: str) -> list[int]:
    """Read seeds: one number is how many of them, several are the seeds themselves.

    Raises:
        argparse.ArgumentTypeError: it is neither.

    Example:
        >>> seeds("3"), seeds("7 9")
        ([0, 1, 2], [7, 9])
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words) or words == ["0"]:
        raise argparse.ArgumentTypeError(
            f"expected how many seeds, as 5, or the seeds, as '0 1 2', not '{text}'"
        )
    return list(range(int(words[0]))) if len(words) == 1 else [int(word) for word in words]


def paper_first(argv: Sequence[str], command: str) -> tuple[Paper, list[str]]:
    """Split the name of a paper, which comes first, from the rest.

    Raises:
        UserError: there is none, or it is unknown.
    """
    if not argv or argv[0].startswith("-"):
        known = list(papers())
        example = known[0] if known else "PAPER"
        installed = ", ".join(known) or "none"
        raise UserError(f"say which paper: coterie {command} {example} (installed: {installed})")
    return find_paper(argv[0]), list(argv[1:])


def wants_help(argv: Sequence[str]) -> bool:
    """Whether help is asked for."""
    return "--help" in argv or "-h" in argv


# What commands print: tables and facts for people, one JSON document for programs.

JSON_HELP = "print one JSON document, with everything, and nothing else"


def say(line: str) -> None:
    """Print a line as it is."""
    sys.stdout.write(f"{line}\n")


def tell(text: str, head: str = "") -> None:
    """Print a text for people, behind a head, folded between words to the width there is."""
    say("\n".join(folded(text, width(), head)))


def tell_facts(title: str, row: Mapping[str, Any], style: str = "") -> None:
    """Print one thing for people: a line for each of its facts, but for those it lacks.

    Args:
        title: what it is; none for ``""``.
        row: facts by name.
        style: of rich, for terminals.
    """
    known = {name: cell(value) for name, value in row.items() if cell(value) != "-"}
    text = Text("\n".join(facts(title, known, width())), style)
    console().print(text, soft_wrap=True)


@contextmanager
def aside(active: bool) -> Iterator[None]:
    """Send what others print to stderr, so that stdout holds a JSON document only."""
    with redirect_stdout(sys.stderr) if active else nullcontext():
        yield


def print_json(document: Any) -> None:
    """Print one JSON document on one line; numbers that are not finite become null."""
    say(json.dumps(finite(document), ensure_ascii=False))


def print_rows(
    rows: Iterable[Mapping[str, Any]],
    title: str | None = None,
    as_json: bool = False,
    first: Sequence[str] = (),
    more: str = "by --json, or where the terminal (COLUMNS) is wider",
) -> None:
    """Print rows as a table, numbers to the right; or as a JSON array, which has all columns.

    Args:
        rows: by column; a column matters more than those behind it, which are left out first where
            there is no room.
        title: a line above the table.
        as_json: print the array instead.
        first: columns that matter most, beside the one that stands first.
        more: where columns are to be seen that had no room.
    """
    rows = list(rows)
    if as_json:
        print_json(rows)
        return
    columns = dict.fromkeys(name for row in rows for name in row)
    numbers = {
        name
        for name in columns
        if all(isinstance(row.get(name), int | float | None) for row in rows)
    }
    texts = [{name: cell(row.get(name)) for name in columns} for row in rows]
    if title:
        tell(title)
    for line in table(texts, width(), numbers, first, more):
        say(line)


def print_report(report: Report, saved: Path) -> None:
    """Print a report for people, and where it was written."""
    more = f"by --json, and in {saved.name}"
    print_rows(report.view or report.rows, report.title, first=report.first, more=more)
    for note in report.notes:
        tell(note)
    tell(f"Written to {saved} and {saved.with_suffix('.tex').name}")


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
