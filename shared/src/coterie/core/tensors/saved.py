"""Files of tensors that vouch for themselves: written in one step with a digest, then checked.

A file is what ``torch.save`` writes, so ``torch.load`` reads it too. It is a zip archive; its
comment, the last bytes, holds the SHA-256 of everything before. ``torch.load`` alone would not
notice a bit that was flipped on the disk.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from coterie.core.errors import UserError

_MARK = b"sha256:"
_COMMENT = len(_MARK) + 64
_LENGTH = _COMMENT.to_bytes(2, "little")  # the archive's last field, before its comment
_BLOCK = 1 << 20


def save(content: Any, path: Path) -> None:
    """Write tensors and plain values; a process killed in between leaves the old file whole.

    Args:
        content: what ``torch.load(weights_only=True)`` can read.
        path: file to replace.

    Raises:
        OSError: the disk is full, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "two.pt"
        >>> save({"two": torch.ones(2)}, file)
        >>> load(file)
        {'two': tensor([1., 1.])}
    """
    with _partial(path) as partial:
        _write(content, partial)
        os.replace(partial, path)


def save_by_digest(content: Any, folder: Path, ending: str) -> Path:
    """Write as `save` does, into a file that is named by its digest; return the file.

    One of that name held the same already.
    """
    with _partial(folder / f"new{ending}") as partial:
        path = folder / f"{_write(content, partial)}{ending}"
        os.replace(partial, path)
        return path


def load(path: Path, digest: str | None = None) -> Any:
    """Read what `save` wrote, onto the CPU.

    Args:
        path: of the file.
        digest: that it must have; None for the one that it says itself.

    Raises:
        UserError: the file may not be read, or not every bit is as it was written.
    """
    try:
        how = _damage(path, digest)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot read {path} ({reason}): mend that, or name another run") from None
    if how is None:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whole, yet made by something else
            how = type(error).__name__
    raise UserError(
        f"checkpoint {path} is damaged ({how}): put back a copy of it, or train anew under "
        "another --run.name"
    )


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Name a file to write beside ``path``; it is gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
    finally:  # of a full disk or an interruption; renamed otherwise
        partial.unlink(missing_ok=True)


def _write(content: Any, path: Path) -> str:
    """Write a file and see it to the disk; return its digest."""
    with path.open("wb") as file:
        sealed = _Sealed(file)
        try:
            torch.save(content, sealed)  # type: ignore[arg-type]  # needs write and flush alone
        except RuntimeError:
            if sealed.error is not None:  # what torch makes of a full disk
                raise sealed.error from None
            raise
        digest = sealed.close()
        file.flush()
        os.fsync(file.fileno())
    return digest


class _Sealed:
    """Pass bytes on and hash them; hold the archive's last field back, which gets a comment."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self._held = file, hashlib.sha256(), b""
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write all but the last bytes of what came so far."""
        end = bytes(data[-2:])
        if len(data) < 2:
            end = self._held + end
            whole: list[bytes | memoryview] = [end[:-2]]
        else:
            whole = [self._held, data[:-2]]
        try:
            for part in whole:
                self._hash.update(part)
                self._file.write(part)
        except OSError as error:
            self.error = error
            raise
        self._held = end[-2:]
        return len(data)

    def flush(self) -> None:
        """Do nothing: `save` flushes all at once."""

    def close(self) -> str:
        """Write the digest in place of the empty comment; return it."""
        assert self._held == b"\0\0", "torch.save writes no zip archive any more"
        digest = self._hash.hexdigest()
        self._file.write(_LENGTH + _MARK + digest.encode())
        return digest


def _damage(path: Path, wanted: str | None) -> str | None:
    """Say what is wrong with a file that must have a digest; None if nothing is."""
    left = path.stat().st_size - _COMMENT - len(_LENGTH)
    if left <= 0:
        return "it is cut short"
    found = hashlib.sha256()
    with path.open("rb") as file:
        while left and (block := file.read(min(left, _BLOCK))):
            found.update(block)
            left -= len(block)
        end = file.read()
    if not end.startswith(_LENGTH + _MARK):
        return "it has no digest: cut short, or of an older version"
    digest = found.hexdigest()
    if end != _LENGTH + _MARK + digest.encode() or wanted not in (None, digest):
        return "its digest is another"
    return None
