"""Text files, plain or packed: opened, checked to their end, read by a parser, rows located."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

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
    return _unpacked(path, path)  # what unpacks it closes it


@contextmanager
def opened_from(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file as `opened` does; gives it as it is, whose ``tell`` says how much is read, too.

    Raises:
        UserError: as `opened`.
    """
    with _from_disk(path) as raw, _unpacked(path, raw) as stream:
        yield raw, stream


def _unpacked(path: Path, source: Any) -> IO[bytes]:
    """Unpack a file: its path, or the file that has been opened."""
    try:
        stream: IO[bytes] = path.open("rb") if source is path else source
        for _ in range(_LAYERS):
            kind = _packing(stream)
            if not kind:
                break
            if source is path:
                stream.close()
            source = stream = _from_zip(path, source) if kind == "zip" else _UNPACK[kind](source)
    except OSError as error:
        raise _cannot_be_read(path, error) from None
    return stream


def _from_disk(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise _cannot_be_read(path, error) from None


def _cannot_be_read(path: Path, error: OSError) -> UserError:
    reason = (error.strerror or str(error)).lower()
    return UserError(f"{path} cannot be read ({reason}): check the path")


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


# Text files, plain or packed: whether they can be read, what a parser reads, where rows stand.

_CHUNK = 1 << 20
_HEAD = 1 << 18  # characters after the first line, more than the csv module takes for one field


@dataclass(frozen=True)
class Layout:
    """How a text table is written.

    Attributes:
        columns: names of the columns from left to right.
        separator: what stands between fields.
        header: True if the first line names the columns.
        quoted: True if fields may be in double quotes.
        encoding: of the text.
        whole_lines: True if even the last line ends with a line end, so that a file cut off in the
            middle of its last number is noticed.
        remedy: what to do about a malformed file.
    """

    columns: tuple[str, ...]
    separator: str = "\t"
    header: bool = False
    quoted: bool = False
    encoding: str = "utf-8-sig"
    whole_lines: bool = False
    remedy: str = "fetch the file again"

    @property
    def mark(self) -> str:
        """The separator as one character: a tab stands for ``::`` in what is parsed."""
        return "\t" if self.separator == "::" else self.separator


def located(path: Path, line: int, what: str, remedy: str, unit: str = "line") -> UserError:
    """Make the one-line error of a malformed file."""
    # A damaged file puts anything into the message, line ends included.
    return UserError(f"{path}, {unit} {line}: " + " ".join(f"{what}; {remedy}".split()))


def unreadable(path: Path, line: int, error: Exception, remedy: str) -> UserError:
    """Make the error of a file whose reading ended early: its data are damaged, or the disk is."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, DAMAGE):
        return UserError(f"{path} cannot be read ({error}): check the disk")
    what = f"the {packed_as(path) or 'compressed'} data are corrupt or cut off from about here"
    return located(path, line, what, remedy)


class NoRows(UserError):
    """A file without rows, which a folder of parts may have."""


def check_names(path: Path, names: Iterable[str], unit: str = "line") -> None:
    """Check that no column has the name of another.

    Raises:
        UserError: two have.
    """
    again = next((name for name, times in Counter(names).items() if times > 1), None)
    if again is not None:
        what = f"a column name occurs twice ('{again[:40]}')"
        raise located(path, 1, what, "rename one of them", unit)


def check_text(path: Path, layout: Layout) -> int:
    """Read a file once, part by part, to see whether it can be read to its end.

    Returns:
        Number of double quotes in it.

    Raises:
        UserError: if it cannot be read, is corrupt, empty, cut off or in another encoding.
    """
    decoder = codecs.getincrementaldecoder(layout.encoding)()
    lines, quotes, empty, last, fault = 0, 0, True, b"", None
    for part in _parts(path, layout):
        fault = fault or _undecodable(path, layout, decoder, part, lines)
        lines += part.count(b"\n")
        quotes += part.count(b'"')
        empty = empty and not part.strip()
        last = part[-1:]
    fault = fault or _undecodable(path, layout, decoder, b"", lines, final=True)
    if empty:
        raise NoRows(str(located(path, 1, "the file is empty", layout.remedy)))
    if layout.whole_lines and last != b"\n":
        what = "the last line has no line end, it is cut off"
        raise located(path, lines + 1, what, layout.remedy)
    if fault:
        raise fault
    return quotes


def read_text(path: Path, layout: Layout) -> str:
    """Read and decode a file.

    Raises:
        UserError: as `check_text`.
    """
    check_text(path, layout)
    with _text(path, layout) as text:
        return text.read()


def for_parser(path: Path, layout: Layout) -> IO[bytes]:
    """Open a file that `check_text` accepted: bytes of UTF-8, fields between `Layout.mark`."""
    if layout.encoding == "utf-8-sig" and layout.separator != "::":
        return opened(path)
    return io.BufferedReader(_Recoded(_text(path, layout), layout), _CHUNK)


def lines_of(path: Path, layout: Layout) -> Iterator[str]:
    """Yield the lines of a file that `check_text` accepted, each with its line end."""
    with _text(path, layout) as text:
        for line in text:
            yield line.replace("::", "\t") if layout.separator == "::" else line


def head(path: Path, layout: Layout) -> str:
    """Read the lines of a file up to the first one that is not blank, and what may belong to it.

    A quoted field may go on in the next lines; the csv module takes no field as long as what is
    read here.
    """
    found: list[str] = []
    after: int | None = None
    for line in lines_of(path, layout):
        found.append(line)
        if after is not None:
            after += len(line)
            if after > _HEAD:
                break
        elif line.strip():
            after = 0
    return "".join(found)


def first_line(text: str, separator: str, quoted: bool) -> list[str]:
    """Fields of the first line that is not blank; none if they cannot be told."""
    try:
        found = rows_of(io.StringIO(text, newline=""), separator, quoted)
        return next((fields for _, fields in found), [])
    except csv.Error:  # a field beyond the csv module's limit, as of another separator
        return []


def rows_of(lines: Iterable[str], separator: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row; blank lines and quoted line ends are counted."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    rows = csv.reader(lines, delimiter=separator, quoting=quoting)
    start = 1
    for fields in rows:
        if len(fields) > 1 or any(field.strip() for field in fields):
            yield start, fields
        start = rows.line_num + 1


class _Recoded(io.RawIOBase):
    """Text as bytes of UTF-8, with tabs for ``::`` where that is the separator."""

    def __init__(self, text: io.TextIOWrapper, layout: Layout) -> None:
        self._text, self._layout, self._rest = text, layout, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            part = self._text.read(_CHUNK)
            if self._layout.separator == "::":
                # A run of colons is read to its end, as its first two are the separator.
                while part.endswith(":") and (more := self._text.read(1)):
                    part += more
                part = part.replace("::", "\t")
            self._rest = part.encode()
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._text.close()
        super().close()


def _undecodable(
    path: Path, layout: Layout, decoder: Any, part: bytes, lines: int, final: bool = False
) -> UserError | None:
    """Decode a part that begins after so many line ends; give the error if it fails."""
    try:
        decoder.decode(part, final)
    except UnicodeDecodeError as error:
        line = lines + error.object.count(b"\n", 0, error.start) + 1
        what = f"not {layout.encoding.removesuffix('-sig').upper()} text"
        return located(path, line, what, "save the file in that encoding")
    return None


def _parts(path: Path, layout: Layout) -> Iterator[bytes]:
    lines = 0
    try:
        with opened(path) as stream:
            while part := stream.read(_CHUNK):
                lines += part.count(b"\n")
                yield part
    except (*DAMAGE, OSError) as error:
        raise unreadable(path, lines + 1, error, layout.remedy) from None


def _text(path: Path, layout: Layout) -> io.TextIOWrapper:
    return io.TextIOWrapper(opened(path), encoding=layout.encoding, newline="")
