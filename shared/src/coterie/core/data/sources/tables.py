"""Read text tables so that a fault is one line that names the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from coterie.core.errors import UserError

_CHUNK = 1 << 20
_BLOCK = 1 << 30  # bytes that are parsed at once, at most
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


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


@dataclass(frozen=True)
class Table:
    """A parsed file that knows where its rows stand, so that a fault names the place.

    Attributes:
        path: the file.
        names: all columns that it has.
        columns: those that are read.
        place: line (or row) of the file on which a row of the table starts.
        remedy: what to do about a malformed file.
        unit: ``line``, or ``row`` where the file is no text.
    """

    path: Path
    names: tuple[str, ...]
    columns: pa.Table
    place: Callable[[int], int]
    remedy: str
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.columns)

    def values(self, column: str) -> pa.Array:
        """Column as one Arrow array, as it is in the file."""
        found = self.columns[column]
        if pa.types.is_dictionary(found.type):
            found = found.cast(found.type.value_type)
        return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)

    def whole(self, column: str) -> np.ndarray | None:
        """Column as ``(n,)`` int64 where all of it is written in whole numbers, else None."""
        values = self.values(column)
        if _is_text(values.type):
            values = pc.utf8_trim_whitespace(values)
            if pc.any(pc.match_substring(values, "x", ignore_case=True)).as_py():
                return None  # Arrow would read 0x1F as 31
        elif not pa.types.is_integer(values.type):
            return None
        try:
            found = values.cast(pa.int64())
        except pa.ArrowInvalid:
            return None
        return None if found.null_count else np.array(found.to_numpy())

    def integers(self, column: str) -> np.ndarray:
        """Column as ``(n,)`` int64.

        Raises:
            UserError: naming the first line with anything else.
        """
        if (whole := self.whole(column)) is not None:
            return whole
        number = _floats(self.values(column))
        with np.errstate(invalid="ignore"):
            bad = ~(np.isfinite(number) & (number % 1 == 0) & (np.abs(number) < 2.0**63))
        self._refuse(bad, column, "a whole number")
        return number.astype(np.int64)

    def numbers(self, column: str) -> np.ndarray:
        """Column as ``(n,)`` float64, all finite.

        Raises:
            UserError: naming the first line with anything else.
        """
        number = _floats(self.values(column))
        self._refuse(~np.isfinite(number), column, "a number")
        return number

    def text(self, column: str) -> pa.Array:
        """Column of text or whole numbers as ``(n,)`` text, missing fields refused.

        Raises:
            UserError: naming the first line where the field is missing, or holds a NUL byte; or
                the column is of another type.
        """
        values = self.values(column)
        if not (_is_text(values.type) or pa.types.is_integer(values.type)):
            raise UserError(
                f"{self.path}: column '{column}' is of type {values.type}: ids, titles and parts "
                "are text or whole numbers"
            )
        self._refuse(values.is_null().to_numpy(zero_copy_only=False), column, "there")
        values = values.cast(pa.large_string())
        nul = pc.match_substring(values, "\0").to_numpy(zero_copy_only=False)
        if nul.any():
            raise self.fault(int(nul.argmax()), f"column '{column}' holds a NUL byte")
        return values

    def strings(self, column: str) -> list[str]:
        """Column as a list, see `text`."""
        found: list[str] = self.text(column).to_pylist()
        return found

    def filled(self, column: str) -> pa.Array:
        """Column as `text` gives it, blank fields refused too.

        Raises:
            UserError: naming the first line where the field is blank.
        """
        values = self.text(column)
        blank = pc.equal(pc.utf8_trim_whitespace(values), "").to_numpy(zero_copy_only=False)
        if blank.any():
            raise self.fault(int(blank.argmax()), f"column '{column}' is empty")
        return values

    def fault(self, row: int, what: str) -> UserError:
        """Make the error for row ``row`` of the table."""
        return located(self.path, self.place(row), what, self.remedy, self.unit)

    def _refuse(self, bad: np.ndarray, column: str, wanted: str) -> None:
        if not bad.any():
            return
        row = int(bad.argmax())
        value = self.values(column)[row].as_py()
        if value is None or value == "":
            raise self.fault(row, f"column '{column}' is missing")
        raise self.fault(row, f"column '{column}' is '{str(value)[:40]}', not {wanted}")


def located(path: Path, line: int, what: str, remedy: str, unit: str = "line") -> UserError:
    """Make the one-line error of a malformed file."""
    # A damaged file puts anything into the message, line ends included.
    return UserError(f"{path}, {unit} {line}: " + " ".join(f"{what}; {remedy}".split()))


def read_table(path: Path, layout: Layout) -> Table:
    """Read a table, plain or gzipped.

    Args:
        path: the file; a name that ends with ``.gz`` is decompressed.
        layout: how it is written.

    Raises:
        UserError: as `parse_table` and `read_text`.
    """
    return parse_table(path, read_text(path, layout), layout)


def parse_table(
    path: Path, text: str, layout: Layout, only: Collection[str] | None = None
) -> Table:
    """Parse the text of a file.

    Args:
        path: of the file, for messages.
        text: from `read_text`.
        layout: how it is written.
        only: the columns to read; None for all.

    Raises:
        UserError: if the file has no rows, or a line has too few or too many fields. Fields that
            are not numbers are refused by `Table`'s methods, for the columns that are asked for.
    """
    if layout.separator == "::":
        # A separator is one character to the parser.
        text = text.replace("::", "\t")
        layout = replace(layout, separator="\t")
    _check_first_line(path, text, layout)
    data = text.encode()
    quoted = layout.quoted and b'"' in data
    chosen = list(layout.columns) if only is None else [c for c in layout.columns if c in only]
    try:
        columns = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(
                column_names=list(layout.columns),
                block_size=min(len(data) + 1, _BLOCK),
                use_threads=False,
            ),
            arrow_csv.ParseOptions(
                delimiter=layout.separator,
                quote_char='"' if quoted else False,
                newlines_in_values=quoted,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(chosen, pa.large_string()),
                include_columns=chosen,
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise _miscounted(path, text, layout) or located(
            path, text.count("\n") + 1, str(error), layout.remedy
        ) from None
    if quoted and data.count(b'"') % 2 and (fault := _unclosed(path, text, layout)):
        raise fault
    columns = columns.slice(layout.header)
    if not len(columns):
        raise located(path, 1, "the file has no rows", layout.remedy)
    return Table(path, layout.columns, columns, partial(_line_of, text, layout), layout.remedy)


def read_text(path: Path, layout: Layout) -> str:
    """Read and decode a file, plain or gzipped.

    Raises:
        UserError: if it cannot be read, is corrupt, empty, cut off or in another encoding.
    """
    data = _read_bytes(path, layout)
    if not data.strip():
        raise located(path, 1, "the file is empty", layout.remedy)
    if layout.whole_lines and not data.endswith(b"\n"):
        line = data.count(b"\n") + 1
        raise located(path, line, "the last line has no line end, it is cut off", layout.remedy)
    try:
        return data.decode(layout.encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"not {layout.encoding.removesuffix('-sig').upper()} text"
        raise located(path, line, what, "save the file in that encoding") from None


def first_line(text: str, separator: str, quoted: bool) -> list[str]:
    """Fields of the first line that is not blank; none if they cannot be told."""
    try:
        return next((fields for _, fields in _lines(text, separator, quoted)), [])
    except csv.Error:  # a field beyond the csv module's limit, as of another separator
        return []


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _floats(values: pa.Array) -> np.ndarray:
    """Numbers as ``(n,)`` float64; NaN for anything else."""
    if _is_text(values.type):
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.match_substring_regex(values, _NUMBER), values, None)
    try:
        number = values.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.full(len(values), np.nan)
    return np.array(number.to_numpy(zero_copy_only=False))


def _lines(text: str, separator: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row; blank lines and quoted line ends are counted."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)
    start = 1
    for fields in rows:
        if len(fields) > 1 or any(field.strip() for field in fields):
            yield start, fields
        start = rows.line_num + 1


def _read_bytes(path: Path, layout: Layout) -> bytes:
    parts: list[bytes] = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            while part := stream.read(_CHUNK):
                parts.append(part)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        line = sum(part.count(b"\n") for part in parts) + 1
        what = "the gzip data are corrupt or cut off from about here"
        raise located(path, line, what, layout.remedy) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path") from None
    return b"".join(parts)


def _check_first_line(path: Path, text: str, layout: Layout) -> None:
    fields = first_line(text, layout.separator, layout.quoted)
    wanted = ", ".join(layout.columns)
    if len(fields) != len(layout.columns):
        what = f"expected {len(layout.columns)} columns ({wanted}), found {len(fields)}"
        raise located(path, 1, what, layout.remedy)
    if layout.header and tuple(field.strip() for field in fields) != layout.columns:
        raise located(path, 1, f"expected the header {wanted}", layout.remedy)


def _miscounted(path: Path, text: str, layout: Layout) -> UserError | None:
    """Find the first line with too few or too many fields."""
    line, count = 0, len(layout.columns)
    try:
        for line, fields in _lines(text, layout.separator, layout.quoted):
            if len(fields) != count:
                what = f"expected {count} columns, found {len(fields)}"
                return located(path, line, what, layout.remedy)
    except csv.Error as fault:
        return located(path, line + 1, str(fault), layout.remedy)
    return None


def _unclosed(path: Path, text: str, layout: Layout) -> UserError | None:
    """Find a last field that begins with a quote and swallows the lines that follow."""
    line, fields = deque(_lines(text, layout.separator, layout.quoted), maxlen=1).pop()
    if "\n" in fields[-1] and not text.rstrip().endswith('"'):
        return located(path, line, "a quote is not closed", layout.remedy)
    return None


def _line_of(text: str, layout: Layout, row: int) -> int:
    """Line on which data row ``row`` starts."""
    lines = _lines(text, layout.separator, layout.quoted)
    found = next(itertools.islice(lines, row + layout.header, None), None)
    return len(text.splitlines()) if found is None else found[0]
