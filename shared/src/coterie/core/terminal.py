"""What is printed for people: names, paths and notes are data, never markup. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_silent: ContextVar[bool] = ContextVar("silent", default=False)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def console(**options: Any) -> Console:
    """Make a console of rich that prints what it is given as it stands.

    By itself rich takes ``[/old]`` in a path for a mistake in its markup, leaves ``[old]`` out, and
    draws a picture for ``:heart:``.

    Args:
        options: of rich's ``Console``.
    """
    from rich.console import Console  # nothing that `coterie --help` needs

    plain = {"markup": False, "emoji": False, "highlight": False, "quiet": _silent.get()}
    return Console(**plain | options)


@contextmanager
def silenced(active: bool = True) -> Iterator[None]:
    """Let the consoles of this thread print nothing meanwhile; other threads print as ever.

    Args:
        active: whether to; false changes nothing.

    Example:
        >>> with silenced():
        ...     console().print("nobody hears this")
        >>> console().print("this one is heard")
        this one is heard
    """
    token = _silent.set(active or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def one_line(text: str) -> str:
    r"""Escape what would move the cursor: a path may hold a newline, a title an escape.

    Example:
        >>> print(one_line("runs/a\nb[/c]"))
        runs/a\nb[/c]
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
