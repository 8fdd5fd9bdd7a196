"""Files written in one step or not at all, with errors of the disk as one line. Torch-free."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from coterie.core.errors import UserError

_ELSEWHERE = "choose another folder by --out DIR"
_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def writing(path: Path, when_full: str = "", elsewhere: str = _ELSEWHERE) -> Iterator[None]:
    """Turn an error of the disk below ``path`` into one line for the user.

    Args:
        path: what is written.
        when_full: what the user can do after making room; by default that is ``elsewhere``.
        elsewhere: how the user writes to another place.

    Raises:
        UserError: the disk is full, or ``path`` cannot be written.

    Example:
        >>> with writing(Path("runs")):  # doctest: +IGNORE_EXCEPTION_DETAIL
        ...     raise OSError(errno.ENOSPC, "No space")
        Traceback (most recent call last):
        ...
        UserError: no space left for runs: free some, or choose another folder by --out DIR
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            then = when_full or f"or {elsewhere}"
            raise UserError(f"no space left for {path}: free some, {then}") from None
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot write {path} ({reason}): {elsewhere}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file beside ``path`` that takes its place when the block succeeds.

    Example:
        >>> with replacing(Path(tempfile.mkdtemp()) / "a.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> temporary.exists()
        False
    """
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder that gets the name of a new one when the block succeeds.

    Files and folders get the modes that new ones have: some writers keep all to themselves. An
    error leaves nothing.

    Raises:
        UserError: it is there already, or cannot be written.

    Example:
        >>> with new_folder(Path(tempfile.mkdtemp()) / "a" / "b") as temporary:
        ...     _ = (temporary / "c.txt").write_text("whole")
        >>> temporary.exists()
        False
    """
    elsewhere = "choose another folder by --to"
    if folder.exists():
        raise UserError(f"{folder} is there already: {elsewhere}")
    with writing(folder, elsewhere=elsewhere):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with writing(folder, elsewhere=elsewhere):
            yield temporary
            _open_to_others(temporary)
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _open_to_others(folder: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, (0o777 if path.is_dir() else 0o666) & ~umask)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file under a temporary name, then rename it; ``mode`` says who may read it.

    Raises:
        UserError: the disk is full, or the folder cannot be written; the old file stays.
    """
    with writing_whole(path, mode) as file:
        file.write(content)


@contextmanager
def writing_whole(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a file under a temporary name, which takes its place when the block succeeds.

    It is on the disk before it is renamed. Arguments and errors as for `write_bytes`.
    """
    with writing(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def write_json(path: Path, content: Any) -> None:
    """Write JSON as `write_text` does; numbers that are not finite become null."""
    write_text(path, json.dumps(finite(content), indent=2, ensure_ascii=False) + "\n")


def finite(content: Any) -> Any:
    """Replace NaN and infinity by None, which JSON has a word for.

    Example:
        >>> finite({"a": [1.5, float("nan")]})
        {'a': [1.5, None]}
    """
    if isinstance(content, dict):
        return {str(key): finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    if isinstance(content, float) and content - content != 0.0:
        return None
    return content


def sha256(path: Path) -> str:
    """Hash a file, in hexadecimal.

    Example:
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     sha256(Path(file.name))[:8]
        'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
