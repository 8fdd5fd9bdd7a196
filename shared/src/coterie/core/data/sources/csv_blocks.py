"""Big CSV files, block by block, so that memory does not grow with the file.

A fault is one line that names the file and the line, as in `coterie.core.data.sources.tables`,
which keeps the columns that it reads. To find it, only the block that has it is read again.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv as arrow_csv

from coterie.core.data.sources.text_files import DAMAGE, located, opened, unreadable
from coterie.core.errors import UserError, nearest

_BLOCK = 8 << 20  # bytes of text in memory at a time
_PARSED = 1 << 20  # bytes of text that a thread parses at a time
_LONGEST_LINE = 64 << 20
_MOST_NAMED = 20  # columns that a message lists
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_BOM = b"\xef\xbb\xbf"


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
    """

    reads: dict[str, pa.DataType]
    names: tuple[str, ...] | None = None
    separator: str = ","
    nulls: tuple[str, ...] = ()
    may_be_null: frozenset[str] = frozenset()
    whole_lines: bool = True
    remedy: str = "fetch the file again"


@dataclass(frozen=True)
class Block:
    """Some rows of a file, one after the other.

    Attributes:
        path: the file.
        first_row: number of its first row in the file, from 0.
        table: the columns that are read.
        first_line: of the file, on which the block's text starts.
        text: that text.
        remedy: what to do about a malformed file.
    """

    path: Path
    first_row: int
    table: pa.Table
    first_line: int
    text: bytes
    remedy: str

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def numbers(self, column: str) -> npt.NDArray[Any]:
        """Column as ``(n,)`` of its own type, none missing."""
        values: npt.NDArray[Any] = self.table[column].to_numpy()
        return values

    def fault(self, row: int, what: str) -> UserError:
        """Make the error for row ``row`` of the block."""
        full = (n for n, line in enumerate(self.text.split(b"\n")) if line.strip())
        line = next(itertools.islice(full, row, None))
        return located(self.path, self.first_line + line, what, self.remedy)


def csv_blocks(path: Path, form: CsvForm) -> Iterator[Block]:
    """Read a file: plain or packed, see `coterie.core.data.sources.text_files.opened`.

    Raises:
        UserError: naming the line, if a row has another number of fields, a field is missing, or
            no number where there should be one; or if the file has no rows, lacks a column, is
            corrupt or cut off.
    """
    with opened(path) as stream:
        yield from _Reader(path, form, stream).blocks()


class _Reader:
    def __init__(self, path: Path, form: CsvForm, stream: IO[bytes]) -> None:
        self._path, self._form, self._stream = path, form, stream
        self._line, self._row = 1, 0

    def blocks(self) -> Iterator[Block]:
        rest = self._read(len(_BOM)).removeprefix(_BOM)
        names = self._form.names
        for text in self._texts(rest):
            start = 0
            if names is None:
                names, start = self._header(text)
            lines = text.count(b"\n") + (not text.endswith(b"\n"))
            here = text[start:]
            if here.strip():
                first = self._line + text.count(b"\n", 0, start)
                table = self._parsed(here, first, names)
                yield Block(self._path, self._row, table, first, here, self._form.remedy)
                self._row += table.num_rows
            self._line += lines
        if not self._row:
            raise self._fault("the file has no rows", 1)

    def _texts(self, rest: bytes) -> Iterator[bytes]:
        """Yield whole lines, a block of them at a time; the last may lack its line end."""
        while part := self._read(_BLOCK):
            rest += part
            end = rest.rfind(b"\n") + 1
            if end:
                yield rest[:end]
                rest = rest[end:]
            elif len(rest) > _LONGEST_LINE:
                raise self._fault("a line without end")
        if rest.strip():
            if self._form.whole_lines and not rest.endswith(b"\n"):
                raise self._fault("the last line has no line end, it is cut off")
            yield rest

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (*DAMAGE, OSError) as error:
            raise unreadable(self._path, self._line, error, self._form.remedy) from None

    def _header(self, text: bytes) -> tuple[tuple[str, ...], int]:
        end = text.index(b"\n") + 1 if b"\n" in text else len(text)
        words = _fields(text[:end].decode("utf-8", "replace"), self._form.separator)
        names = tuple(word.strip() for word in words)
        for wanted in self._form.reads:
            if names.count(wanted) != 1:
                what = "no column" if wanted not in names else "two columns"
                hint = nearest(wanted, names)
                if len(names) > _MOST_NAMED and not hint.startswith("did"):
                    hint = f"there are {len(names)} others"
                what = f"{what} '{wanted}': {hint}"
                raise self._fault(what)
        return names, end

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
            fields = _fields(each, self._form.separator)
            if len(fields) != len(names):
                what = f"expected {len(names)} columns, found {len(fields)}"
                return self._fault(what, number)
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
            fits = _WHOLE.fullmatch(field) and -(2**63) <= int(field) < 2**63
            return "" if fits else f"{shown}, not a whole number"
        return "" if _is_number(field) else f"{shown}, not a number"

    def _fault(self, what: str, line: int | None = None) -> UserError:
        """Make the error of a line, by default the one that comes next."""
        return located(self._path, self._line if line is None else line, what, self._form.remedy)


def _fields(line: str, separator: str) -> list[str]:
    return next(csv.reader(io.StringIO(line.rstrip("\r\n"), newline=""), delimiter=separator), [])


def _is_number(field: str) -> bool:
    try:
        return bool(np.isfinite(float(field))) and "_" not in field
    except ValueError:
        return False
