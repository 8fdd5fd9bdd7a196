"""Room on the disk for a file that is made of a longer one: asked for before it is needed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}


class Room:
    """How many bytes a file needs, told from its first part.

    Args:
        target: the file.
        row_bytes: bytes of a row.
        remedy: what to do where there is no room, beside freeing some.

    Attributes:
        needed: bytes of the whole file, about; 0 before the first look.
    """

    def __init__(self, target: Path, row_bytes: int, remedy: str) -> None:
        self._target, self._row_bytes, self._remedy = target, row_bytes, remedy
        self.needed = 0.0

    def check(self, rows: int, share: float, written: Path) -> None:
        """Look once whether the disk has room for what is still to come.

        Args:
            rows: that the first part has given.
            share: of the whole that this part is.
            written: what is on the disk already.

        Raises:
            UserError: it has not.
        """
        if self.needed:
            return
        self.needed = self._row_bytes * rows / max(share, 1e-9)
        free = shutil.disk_usage(self._target.parent).free + written.stat().st_size
        if self.needed > free:
            raise UserError(f"{self._asked()}, and there are {free / 1e9:.2f}: {self._then()}")

    @contextmanager
    def or_fault(self) -> Iterator[None]:
        """Turn the error of a full disk into one line.

        Raises:
            UserError: the disk is full.
        """
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise UserError(f"{self._asked()}, and the disk is full: {self._then()}") from None

    def _asked(self) -> str:
        return f"{self._target} needs about {self.needed / 1e9:.2f} GB"

    def _then(self) -> str:
        return f"free some, or {self._remedy}"
