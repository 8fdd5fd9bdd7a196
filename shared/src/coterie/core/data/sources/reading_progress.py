"""Lines that say how far the reading of big files is, to whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from coterie.core.terminal import console

_EVERY = 10.0  # seconds between two lines


class Progress:
    """Says on the error output how far some files are read, every ten seconds.

    Args:
        what: is done: "converting".
        sources: files, read one after the other.
    """

    def __init__(self, what: str, sources: Sequence[Path]) -> None:
        self._sizes = [source.stat().st_size for source in sources]
        self._what = f"{what} {', '.join(str(source) for source in sources)}"
        self._said = time.monotonic()
        self._first: tuple[float, float] | None = None

    def share(self, source: int, read: float) -> float:
        """Share of all bytes that have been read.

        Args:
            source: number of the file that is being read.
            read: share of it.
        """
        done = sum(self._sizes[:source]) + read * self._sizes[source]
        return done / max(sum(self._sizes), 1)

    def tell(self, source: int, read: float, rows: int) -> None:
        """Say it, if it is time; arguments as for `share`, and the rows so far."""
        now, done = time.monotonic(), self.share(source, read)
        if self._first is None:  # what was done before, by a run that was killed, took no time
            self._first = now, done
        if now - self._said < _EVERY:
            return
        self._said = now
        began, before = self._first
        left = _duration((now - began) / max(done - before, 1e-9) * (1 - done))
        size = f"{done:.0%} of {sum(self._sizes) / 1e9:.1f} GB"
        line = f"{self._what}: {rows:,} rows, {size}, {left} left"
        console(stderr=True).print(line, soft_wrap=True)


def _duration(seconds: float) -> str:
    """Round up a time.

    Example:
        >>> _duration(12.0), _duration(200.0)
        ('12 s', '4 min')
    """
    return f"{seconds:.0f} s" if seconds < 60 else f"{-(-seconds // 60):.0f} min"
