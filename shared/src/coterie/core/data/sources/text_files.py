"""Text files, plain or packed: whether they can be read, what a parser reads, where rows stand."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from coterie.core.data.sources.opening import DAMAGE, opened, packed_as
from coterie.core.errors import UserError

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
