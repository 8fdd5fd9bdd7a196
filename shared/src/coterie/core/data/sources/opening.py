"""Open a file as bytes, whatever packs it, which its first bytes tell and not its name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from coterie.core.errors import UserError

DAMAGE = (gzip.BadGzipFile, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)
"""What reading a packed file raises where its data are corrupt or cut off; bzip2 raises OSError."""

_UNPACK: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_LAYERS = 3  # packed files within packed files
_MAGIC = 10  # bytes that tell what packs a file
_ONCE = ("/dev/", "/proc/")  # what is there may be another thing next time
_SUFFIXES = (".gz", ".bz2", ".xz", ".zip")


def existing(path: Path) -> Path:
    """Check that there is a file or a folder that can be read again and again, as runs do.

    Raises:
        UserError: there is none; or it is a pipe, a terminal or the standard input.
    """
    once = str(path) == "-" or str(path.absolute()).startswith(_ONCE)
    if once or (path.exists() and not (path.is_file() or path.is_dir())):
        raise UserError(
            f"{path} can be read once only, and a run reads its data again: save it as a file first"
        )
    try:
        there = path.exists()
    except OSError:  # a name that is too long, for instance
        there = False
    if not there:
        raise UserError(f"there is no file {path}: check the path")
    return path


def opened(path: Path) -> IO[bytes]:
    """Open a file: plain, or in gzip, bzip2, xz, or alone in a zip archive.

    Raises:
        UserError: it cannot be read, or the archive is damaged or holds several files.
    """
    try:
        stream: IO[bytes] = path.open("rb")
        source: Any = path  # which what unpacks it closes
        for _ in range(_LAYERS):
            kind = _packing(stream)
            if not kind:
                break
            if source is path:
                stream.close()
            source = stream = _from_zip(path, source) if kind == "zip" else _UNPACK[kind](source)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{path} cannot be read ({reason}): check the path") from None
    return stream


def packed_as(path: Path) -> str:
    """Name what packs a file: gzip, bzip2, xz, zip; nothing if it is plain or cannot be read."""
    try:
        with path.open("rb") as stream:
            return _packing(stream)
    except OSError:
        return ""


def bare_name(path: Path) -> str:
    """Name of what is inside, in lower case, without the suffixes of packing.

    Example:
        >>> bare_name(Path("Ratings.CSV.gz"))
        'ratings.csv'
    """
    name = path.name
    if packed_as(path) == "zip":
        with zipfile.ZipFile(path) as archive:
            name = Path(_only(path, archive)).name
    name = name.lower()
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def _packing(stream: IO[bytes]) -> str:
    try:
        start = cast(Any, stream).peek(_MAGIC)[:_MAGIC]
    except (*DAMAGE, OSError):  # who reads it meets this again, and says where
        return ""
    if start.startswith(b"\x1f\x8b"):
        return "gzip"
    if start.startswith(b"BZh") and start[4:] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    if start.startswith(b"\xfd7zXZ\0"):
        return "xz"
    return "zip" if start.startswith((b"PK\3\4", b"PK\5\6")) else ""


def _from_zip(path: Path, source: Any) -> IO[bytes]:
    try:
        with zipfile.ZipFile(source) as archive:
            return archive.open(_only(path, archive))
    except zipfile.BadZipFile:
        raise UserError(f"{path} is no whole zip archive: fetch the file again") from None
    except (RuntimeError, NotImplementedError) as error:  # a password, or another compression
        raise UserError(f"{path} cannot be unpacked ({error}): unpack it") from None


def _only(path: Path, archive: zipfile.ZipFile) -> str:
    """Name of the file in an archive, which must be alone in it."""
    names = [each.filename for each in archive.infolist() if not each.is_dir()]
    if "[Content_Types].xml" in names or "content.xml" in names:
        raise UserError(f"{path} is a workbook or document of an office: save the table as CSV")
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise UserError(
            f"{path} holds {len(names)} files, not one: unpack it, and name one of them"
        )
    return names[0]
