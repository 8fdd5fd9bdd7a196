"""One process at a time serves a folder; the lock dies with its process. Torch-free."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import UserError

_LOCK = "serving.lock"
_HANDOVER = 30.0  # seconds that a process which was told to end may take for it


@contextmanager
def serving(path: Path, patience: float | None = None) -> Iterator[None]:
    """Keep every other process from serving a folder meanwhile.

    Args:
        path: of the folder.
        patience: seconds to wait for another process to end; default is 30.

    Raises:
        UserError: another process serves it and does not end, or there is no such folder.
    """
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    try:
        until = time.monotonic() + (_HANDOVER if patience is None else patience)
        while not _taken(descriptor):
            if time.monotonic() > until:
                raise UserError(f"another process is at work in {path}: end that one")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def forget(path: Path) -> None:
    """Remove the private state of the clients of a folder, which nobody serves meanwhile."""
    (path / "position.json").unlink(missing_ok=True)  # first: it says which of the others count
    for pattern in ("state-*", "reply-*", "best-*"):
        for kept in path.glob(pattern):
            kept.unlink()
    shutil.rmtree(path / "entries", ignore_errors=True)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
