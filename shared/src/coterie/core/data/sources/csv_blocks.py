"""Big CSV files, block by block, so that memory does not grow with the file.

A fault is one line that names the file and the line, as in `coterie.core.data.sources.tables`,
which keeps the columns that it reads. To find it, only the block that has it is read again.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv as arrow_csv

from coterie.core.data.sources.text_files import DAMAGE, located, opened_from, unreadable
from coterie.core.errors import UserError, nearest

_BLOCK = 8 << 20  # bytes of text in memory at a time
_PARSED = 1 << 20  # bytes of text that a thread parses at a time
_LONGEST_LINE = 64 << 20
_MOST_NAMED = 20  # columns that a message lists
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_BOM = b"\xef\xbb\xbf"
_CUT_OFF = "the last line has no line end, it is cut off"
_WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "blanks"}
_BINARY = 1 << 12  # bytes in which binary data have a zero


@dataclass(frozen=True)
class CsvForm:
    """How a big CSV file is written, and what is read of it. No field holds a line end.

    Attributes:
        reads: type by column: ``int64``, a float type, or ``string``.
        names: of all columns from left to right, where no header line gives them.
        separator: what stands between fields.
        nulls: what a field without a value holds, in the columns ``may_be_null``.
        may_be_null: columns in which values may be missing.
        whole_lines: whether even the last line ends with a line end, so that a file cut off in the
            middle of its last number is noticed.
        remedy: what to do about a malformed file.
        strangers: by a number of columns, or by the name of one, what a file with so many or with
            that one must be: "this is a file of pages".
    """

    reads: dict[str, pa.DataType]
    names: tuple[str, ...] | None = None
    separator: str = ","
    nulls: tuple[str, ...] = ()
    may_be_null: frozenset[str] = frozenset()
    whole_lines: bool = True
    remedy: str = "fetch the file again"
    strangers: dict[int | str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where in a file a block starts, so that reading can go on there.

    Attributes:
        offset: bytes of unpacked text before it.
        line: number of its first line, from 1.
        row: number of its first row, from 0.
    """

    offset: int
    line: int
    row: int


@dataclass(frozen=True)
class Block:
    """Some rows of a file, one after the other.

    Attributes:
        path: the file.
        place: where the block's text starts.
        table: the columns that are read.
        text: that text.
        remedy: what to do about a malformed file.
        read: share of the file, packed as it is, that has been read.
    """

    path: Path
    place: Place
    table: pa.Table
    text: bytes
    remedy: str
    read: float

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def first_row(self) -> int:
        """Number of its first row in the file, from 0."""
        return self.place.row

    def numbers(self, column: str) -> npt.NDArray[Any]:
        """Column as ``(n,)`` of its own type, none missing."""
        values: npt.NDArray[Any] = self.table[column].to_numpy()
        return values

    def matrix(self, columns: Sequence[str]) -> npt.NDArray[Any]:
        """Columns of one type as ``(n, w)``, none missing."""
        kind = self.table.schema.field(columns[0]).type.to_pandas_dtype()
        found = np.empty((len(self), len(columns)), kind)
        for place, column in enumerate(columns):
            at = 0
            for chunk in self.table[column].chunks:  # without putting them together before
                found[at : at + len(chunk), place] = chunk.to_numpy()
                at += len(chunk)
        return found

    def fault(self, row: int, what: str) -> UserError:
        """Make the error for row ``row`` of the block."""
        full = (n for n, line in enumerate(self.text.split(b"\n")) if line.strip())
        line = next(itertools.islice(full, row, None))
        return located(self.path, self.place.line + line, what, self.remedy)


def csv_blocks(path: Path, form: CsvForm, start: Place | None = None) -> Iterator[Block]:
    """Read a file: plain or packed, see `coterie.core.data.sources.text_files.opened`.

    Args:
        path: the file.
        form: how it is written.
        start: where to go on; None = at its start.

    Raises:
        UserError: naming the line, if a row has another number of fields, a field is missing, or
            no number where there should be one; or if the file has no rows, lacks a column, is
            corrupt or cut off, or is no such table at all.
    """
    with opened_from(path) as (raw, stream):
        yield from _Reader(path, form, raw, stream).blocks(start)


class _Reader:
    def __init__(self, path: Path, form: CsvForm, raw: IO[bytes], stream: IO[bytes]) -> None:
        self._path, self._form, self._raw, self._stream = path, form, raw, stream
        self._size = max(os.fstat(raw.fileno()).st_size, 1)
        self._place = Place(0, 1, 0)

    def blocks(self, start: Place | None) -> Iterator[Block]:
        rest = self._read(len(_BOM))
        self._place = Place(len(_BOM) if rest == _BOM else 0, 1, 0)
        names, rest = self._form.names, rest.removeprefix(_BOM)
        if start is not None:
            while names is None and b"\n" not in rest:
                rest += self._read(_BLOCK)
            names = names or self._header(rest)[0]
            self._seek(start)
            rest = b""
        for text in self._texts(rest):
            if self._place.line == 1 and (what := no_table(text)):
                raise self._fault(what)
            if names is None:
                names, end = self._header(text)
                self._go_on(text[:end], 0)
                text = text[end:]
            rows = 0
            if text and not text.isspace():
                table = self._parsed(text, self._place.line, names)
                read = self._raw.tell() / self._size
                yield Block(self._path, self._place, table, text, self._form.remedy, read)
                rows = table.num_rows
            self._go_on(text, rows)
        if not self._place.row:
            raise self._fault("the file has no rows", 1)

    def _go_on(self, text: bytes, rows: int) -> None:
        """Note that some text has been read."""
        at, lines = self._place, text.count(b"\n")
        if text and not text.endswith(b"\n"):
            lines += 1
        self._place = Place(at.offset + len(text), at.line + lines, at.row + rows)

    def _seek(self, start: Place) -> None:
        """Go on at a place; what is packed is unpacked up to there."""
        try:
            self._stream.seek(start.offset)
        except (*DAMAGE, OSError) as error:
            raise unreadable(self._path, 1, error, self._form.remedy) from None
        self._place = start

    def _texts(self, rest: bytes) -> Iterator[bytes]:
        """Yield whole lines, a block of them at a time; the last may lack its line end."""
        while part := self._read(_BLOCK):
            end = part.rfind(b"\n") + 1
            if end:
                yield b"".join((rest, memoryview(part)[:end]))
                rest = part[end:]
            else:
                rest += part
                if len(rest) > _LONGEST_LINE:
                    raise self._fault("a line without end")
        if rest.strip():
            if self._form.whole_lines and not rest.endswith(b"\n"):
                raise self._fault(no_table(rest) or _CUT_OFF)
            yield rest

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (*DAMAGE, OSError) as error:
            raise unreadable(self._path, self._place.line, error, self._form.remedy) from None

    def _header(self, text: bytes) -> tuple[tuple[str, ...], int]:
        end = text.index(b"\n") + 1 if b"\n" in text else len(text)
        words = fields_of(text[:end].decode("utf-8", "replace"), self._form.separator)
        names = tuple(word.strip() for word in words)
        for name in names:
            if stranger := self._form.strangers.get(name):
                raise self._fault(f"there is a column '{name}': {stranger}")
        lacking = [wanted for wanted in self._form.reads if wanted not in names]
        if lacking:
            raise self._fault(self._without(lacking, text[:end], names))
        twice = next((wanted for wanted in self._form.reads if names.count(wanted) > 1), None)
        if twice is not None:
            raise self._fault(f"two columns '{twice}'")
        return names, end

    def _without(self, lacking: list[str], header: bytes, names: tuple[str, ...]) -> str:
        """Say what is wrong with a header that lacks columns."""
        if other := _other_separator(header, self._form, len(self._form.reads)):
            return other
        if names and all(map(_is_number, names)):
            return "there is no header, this is a row of numbers"
        more = f", nor {len(lacking) - 1} others that are read" if len(lacking) > 1 else ""
        hint = nearest(lacking[0], names)
        if len(names) > _MOST_NAMED and not (hint.startswith("did") and not more):
            hint = f"there are {len(names)} others"
        return f"no column '{lacking[0]}'{more}: {hint}"

    def _parsed(self, text: bytes, line: int, names: tuple[str, ...]) -> pa.Table:
        form = self._form
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(text),
                arrow_csv.ReadOptions(column_names=list(names), block_size=_PARSED),
                arrow_csv.ParseOptions(delimiter=form.separator, newlines_in_values=False),
                arrow_csv.ConvertOptions(
                    column_types=form.reads,
                    include_columns=list(form.reads),
                    null_values=list(form.nulls),
                    strings_can_be_null=bool(form.nulls),
                ),
            )
        except pa.ArrowInvalid as error:
            otherwise = self._fault(f"about here: {error}", line)
            raise self._found(text, line, names) or otherwise from None
        odd = (n for n in form.reads if table[n].null_count and n not in form.may_be_null)
        if next(odd, None) is not None and (fault := self._found(text, line, names)):
            raise fault
        return table

    def _found(self, text: bytes, line: int, names: tuple[str, ...]) -> UserError | None:
        """Look for the first line that is at fault."""
        places = {name: names.index(name) for name in self._form.reads}
        for number, each in enumerate(text.decode("utf-8", "replace").split("\n"), line):
            if not each.strip():
                continue
            fields = fields_of(each, self._form.separator)
            if len(fields) != len(names):
                what = f"expected {len(names)} columns, found {len(fields)}"
                if stranger := self._form.strangers.get(len(fields)):
                    what += f": {stranger}"
                other = _other_separator(each.encode(), self._form, len(names))
                return self._fault(other or what, number)
            for name, place in places.items():
                if what := self._amiss(name, fields[place]):
                    return self._fault(f"column '{name}' is {what}", number)
        return None

    def _amiss(self, name: str, field: str) -> str:
        """Say what is wrong with a field; nothing if it is right."""
        kind, shown = self._form.reads[name], f"'{field[:40]}'"
        if field in self._form.nulls:
            return "" if name in self._form.may_be_null else f"missing ({shown})"
        if pa.types.is_string(kind):
            return ""
        if not field.strip():
            return "missing"
        if pa.types.is_integer(kind):
            if not _WHOLE.fullmatch(field):
                return f"{shown}, not a whole number"
            return "" if -(2**63) <= int(field) < 2**63 else f"{shown}, more than 64 bits hold"
        return "" if _is_number(field) else f"{shown}, not a number"

    def _fault(self, what: str, line: int | None = None) -> UserError:
        """Make the error of a line, by default the one that comes next."""
        return located(
            self._path, self._place.line if line is None else line, what, self._form.remedy
        )


def no_table(text: bytes) -> str:
    """Say what the start of a file is where it is no CSV at all; nothing where it may be.

    Example:
        >>> no_table(b"<!DOCTYPE html>...")
        'this is a web page, not a table'
    """
    if text.lstrip()[:1] == b"<":
        return "this is a web page, not a table"
    if text[:2] in _WIDE:
        return f"this is {_WIDE[text[:2]]}, not UTF-8 text"
    if b"\0" in text[:_BINARY]:
        return "these are binary data, not a table of text"
    if b"\r" in text[:_BINARY] and b"\n" not in text:
        return "lines end with carriage returns alone"
    return ""


def _other_separator(line: bytes, form: CsvForm, columns: int) -> str:
    """Say by what the fields of a line are separated, if it has at least so many of them."""
    text = line.decode("utf-8", "replace")
    if form.separator in text:
        return ""
    for mark, name in _SEPARATORS.items():
        if text.count(mark) + 1 >= columns:
            wanted = _SEPARATORS.get(form.separator, f"'{form.separator}'")
            return f"fields are separated by {name}, not by {wanted}"
    return ""


def fields_of(line: str, separator: str) -> list[str]:
    """Split a line into its fields.

    Example:
        >>> fields_of('1,"2,3"', ",")
        ['1', '2,3']
    """
    return next(csv.reader(io.StringIO(line.rstrip("\r\n"), newline=""), delimiter=separator), [])


def _is_number(field: str) -> bool:
    try:
        return bool(np.isfinite(float(field))) and "_" not in field
    except ValueError:
        return False
