"""A conversion that was broken off: who works on it, how far it got, and its file, to be gone on.

A file under way is an Arrow file without its end, which can be read as an Arrow stream behind eight
bytes. Some of its record batches hold a mark: what stands before such a batch is on the disk, even
if the machine then lost its power, and this is where in the text to go on.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.core.data.sources.sample_forms import Mark
from coterie.core.terminal import console

log = logging.getLogger(__name__)

_MARK = b"mark"
_MAGIC = 8  # bytes of an Arrow file before what is a stream
_WITHOUT = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class Sink(io.RawIOBase):
    """A file that is written, to be given to pyarrow.

    Attributes:
        there: whether what is written is in the file already, so that it is passed over.
    """

    def __init__(self, path: Path, there: bool = False) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | (0 if there else os.O_TRUNC), 0o644)
        self._at, self.there = 0, there

    def writable(self) -> bool:
        """It can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write all of some bytes, or pass over so many."""
        view = memoryview(data).cast("B")
        done = len(view) if self.there else 0
        while done < len(view):
            done += os.pwrite(self._file, view[done:], self._at + done)
        self._at += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes that were written or passed over."""
        return self._at

    def go_on(self) -> None:
        """Write from here on; what stands behind is cut off."""
        os.ftruncate(self._file, self._at)
        self.there = False

    def sync(self) -> None:
        """Wait until all of it is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file, as it is."""
        if not self.closed:
            os.close(self._file)
        super().close()


@dataclass(frozen=True)
class Unfinished:
    """How far a conversion got.

    Attributes:
        path: its file.
        key: of what is made.
        batches: how many record batches stand before the mark.
        size: bytes before it.
        mark: the block in which the next sample is.
        skip: how many samples of that block have been written.
    """

    path: Path
    key: str
    batches: int
    size: int
    mark: Mark
    skip: int

    def schema(self) -> pa.Schema:
        """Columns of the file."""
        with pa.memory_map(str(self.path)) as file:
            return pa.ipc.open_stream(file.read_buffer().slice(_MAGIC)).schema

    def written(self) -> Iterator[tuple[pa.RecordBatch, dict[bytes, bytes] | None]]:
        """Yield the record batches before the mark, with their metadata."""
        with pa.memory_map(str(self.path)) as file:
            reader = pa.ipc.open_stream(file.read_buffer().slice(_MAGIC))
            for _ in range(self.batches):
                yield _next(reader)


def metadata(key: str, mark: Mark, skip: int, size: int) -> dict[bytes, bytes]:
    """What a record batch says that begins behind ``size`` bytes, see `Unfinished`."""
    return {_MARK: json.dumps([key, size, asdict(mark), skip]).encode()}


def unfinished(path: Path, key: str) -> Unfinished | None:
    """Find how far a conversion got; None if there is none of the same."""
    found = None
    try:
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_stream(file.read_buffer().slice(_MAGIC))
            batches = 0
            while True:
                _, says = _next(reader)
                if says and _MARK in says:
                    made, size, mark, skip = json.loads(says[_MARK])
                    if made != key:
                        return None
                    found = Unfinished(path, key, batches, size, Mark.from_plain(mark), skip)
                batches += 1
    except (OSError, StopIteration, pa.ArrowException, ValueError, TypeError, KeyError):
        return found


def _next(reader: Any) -> tuple[pa.RecordBatch, dict[bytes, bytes] | None]:
    batch, says = reader.read_next_batch_with_custom_metadata()
    return batch, None if says is None else dict(says)


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Let one process at a time make a file; the others wait.

    The kernel gives the lock back when the process ends, by a kill too.
    """
    path = target.with_name(f".{target.name}.lock")
    descriptor = _taken(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        with suppress(OSError):  # a fork that came meanwhile must not keep it
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _taken(path: Path) -> int:
    """Take the lock; its file may have been removed by the last owner meanwhile."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        console(stderr=True).print(f"another process converts into {path.parent}: waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _WITHOUT:
            raise
        log.warning("this file system has no locks: let no second process convert into %s", path)
