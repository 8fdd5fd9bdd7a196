"""One process at a time trains in a run folder; the lock dies with its process. Torch-free."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.files import writing

logger = logging.getLogger(__name__)

LOCK = ".lock"
_HELD: set[int] = set()
_WITHOUT = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep every other process from training in a run folder meanwhile.

    The kernel gives the lock back when the process ends, by a kill too, so none is ever left over.
    Reading a run (evaluate, recommend) needs none: its files are replaced in one step.

    Raises:
        UserError: another process has it, and which one; or the folder cannot be written.
    """
    descriptor = _taken(folder)
    _HELD.add(descriptor)
    try:
        yield
    finally:
        _HELD.discard(descriptor)
        with suppress(OSError):
            (folder / LOCK).unlink()
        os.close(descriptor)


def _let_go() -> None:
    """A fork has no part in it: else the lock would outlive this process by that of the fork."""
    for descriptor in _HELD:
        with suppress(OSError):
            os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


def holder(folder: Path) -> str | None:
    """Say who trains in a run folder just now, as ``process 123 on host``; None for nobody."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _said(descriptor)
    except OSError:
        return None
    else:
        return None
    finally:
        os.close(descriptor)


def in_use(folder: Path, who: str) -> UserError:
    """Say that a run goes on elsewhere."""
    return UserError(
        f"{folder} is being trained by {who}: wait for its end, or choose another --run.name"
    )


def _taken(folder: Path) -> int:
    """Take the lock of a folder; the file may have been removed by its last owner meanwhile."""
    path = folder / LOCK
    while True:
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, folder)
            if not _is_still(path, descriptor):
                os.close(descriptor)
                continue
            with writing(path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BaseException:
            with suppress(OSError):
                os.close(descriptor)
            raise
        return descriptor


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise in_use(folder, _said(descriptor)) from None
    except OSError as error:
        if error.errno not in _WITHOUT:
            raise
        logger.warning("this file system has no locks: let no second process train in %s", folder)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _said(descriptor: int) -> str:
    who = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
    return who or "another process"
