"""A bar on stderr for work that is counted, or a line now and then where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tqdm import tqdm

_SILENCE = 30.0  # least seconds between plain lines, so that a log file stays short


class Counting:
    """Show how much of some work, of ``total`` parts, is done.

    On a terminal that is a bar; elsewhere a line, after a part when the last is half a minute old.

    Args:
        title: of the work.
        total: number of parts.
        shown: false shows nothing.
        clock: seconds.

    Example:
        >>> with Counting("Runs", 2, shown=False) as bar:
        ...     bar.done("first")
        ...     bar.up_to(2)
    """

    def __init__(
        self,
        title: str,
        total: int,
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._parts = title, total, 0
        live = shown and sys.stderr.isatty()
        self._bar: tqdm[Any] = tqdm(desc=title, total=total, leave=False, disable=not live)
        self._lines = shown and not live
        self._clock, self._since = clock, clock()

    def __enter__(self) -> Counting:
        """Give itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self._bar.close()

    def done(self, label: str) -> None:
        """Note that one more part is done; ``label`` says which."""
        self._bar.set_postfix_str(label)
        self._show(self._parts + 1, f", {label}")

    def up_to(self, parts: int) -> None:
        """Note that so many parts are done."""
        self._show(parts)

    def _show(self, parts: int, label: str = "") -> None:
        self._bar.update(parts - self._parts)
        self._parts = parts
        now = self._clock()
        if self._lines and now - self._since >= _SILENCE:
            self._since = now
            sys.stderr.write(f"{self._title}: {parts} of {self._total}{label}\n")
            sys.stderr.flush()
