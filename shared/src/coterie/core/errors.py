"""The one exception for mistakes that a user can make and mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """A mistake of the user's: one line that names the thing and the remedy.

    The command line prints the message without a traceback and ends with status 2.

    Example:
        >>> raise UserError("data set 'ml-100' is unknown")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        UserError: data set 'ml-100' is unknown
    """


class Interrupted(KeyboardInterrupt):
    """A run was interrupted after its folder had been made.

    Attributes:
        saved: whether there is a checkpoint to go on from.
        folder: of the run, where the one who was interrupted knows it.
    """

    def __init__(self, saved: bool, folder: Path | None = None) -> None:
        super().__init__(saved)
        self.saved = saved
        self.folder = folder


class Unstackable(RuntimeError):
    """Something can serve one client at a time only; whoever asked for several goes one by one.

    Torch cannot vectorise a function, as some recurrent layers and control flow that depends on
    data, or samples come from files.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """Name the known word nearest to a misspelt one, as the end of an error message.

    Example:
        >>> nearest("ml-100", ["ml-100k", "ml-1m"])
        "did you mean 'ml-100k'?"
        >>> nearest("xyz", ["ml-1m", "ml-100k"])
        'known: ml-100k, ml-1m'
    """
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else "known: " + ", ".join(known)
