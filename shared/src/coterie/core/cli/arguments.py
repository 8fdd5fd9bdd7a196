"""Arguments of the commands, with mistakes as one line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import NoReturn

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, find_paper, papers


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
