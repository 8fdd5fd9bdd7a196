"""Files of tensors that vouch for themselves: written in one step with a digest, then checked.

A file is what ``torch.save`` writes, so ``torch.load`` reads it too. It is a zip archive; its
comment, the last bytes, holds the SHA-256 of everything before. ``torch.load`` alone would not
notice a bit that was flipped on the disk.
"""

from __future__ import annotations

import hashlib
import os
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
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            sealed = _Sealed(file)
            try:
                torch.save(content, sealed)  # type: ignore[arg-type]  # needs write and flush alone
            except RuntimeError:
                if sealed.error is not None:  # what torch makes of a full disk
                    raise sealed.error from None
                raise
            sealed.close()
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:  # a full disk, an interruption
        partial.unlink(missing_ok=True)
        raise


def load(path: Path) -> Any:
    """Read what `save` wrote, onto the CPU.

    Raises:
        UserError: the file may not be read, or not every bit is as it was written.
    """
    try:
        how = _damage(path)
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

    def close(self) -> None:
        """Write the digest in place of the empty comment."""
        assert self._held == b"\0\0", "torch.save writes no zip archive any more"
        self._file.write(_LENGTH + _MARK + self._hash.hexdigest().encode())


def _damage(path: Path) -> str | None:
    """Say what is wrong with a file; None if nothing is."""
    left = path.stat().st_size - _COMMENT - len(_LENGTH)
    if left <= 0:
        return "it is cut short"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left and (block := file.read(min(left, _BLOCK))):
            digest.update(block)
            left -= len(block)
        end = file.read()
    if not end.startswith(_LENGTH + _MARK):
        return "it has no digest: cut short, or of an older version"
    if end != _LENGTH + _MARK + digest.hexdigest().encode():
        return "its digest is another"
    return None
