"""Read text tables so that a fault is one line that names the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from coterie.core.errors import UserError

_CHUNK = 1 << 20


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
    """A parsed file; remembers its text, so that a fault found later still has a line number."""

    path: Path
    layout: Layout
    text: str
    frame: pd.DataFrame

    def integers(self, column: str) -> np.ndarray:
        """Column as ``(n,)`` int64.

        Raises:
            UserError: naming the first line with anything else.
        """
        values = self.frame[column]
        if values.dtype != np.int64:
            number = pd.to_numeric(values.astype(str), errors="coerce").astype(np.float64)
            with np.errstate(invalid="ignore"):
                bad = ~(np.isfinite(number) & (number % 1 == 0) & (number.abs() < 2.0**63))
            self._refuse(bad.to_numpy(), column, "a whole number")
            values = number.astype(np.int64)
        return values.to_numpy()

    def numbers(self, column: str) -> np.ndarray:
        """Column as ``(n,)`` float64, all finite.

        Raises:
            UserError: naming the first line with anything else.
        """
        values = self.frame[column]
        if values.dtype not in (np.int64, np.float64):
            values = pd.to_numeric(values.astype(str), errors="coerce")
        values = values.astype(np.float64)
        self._refuse(~np.isfinite(values.to_numpy()), column, "a number")
        return values.to_numpy()

    def strings(self, column: str) -> list[str]:
        """Column as text, missing fields refused.

        Raises:
            UserError: naming the first line where the field is missing.
        """
        values = self.frame[column]
        self._refuse(values.isna().to_numpy(), column, "there")
        return values.astype(str).tolist()

    def fault(self, row: int, what: str) -> UserError:
        """Make the error for data row ``row``."""
        return located(self.path, _line_of(self.text, self.layout, row), what, self.layout.remedy)

    def _refuse(self, bad: np.ndarray, column: str, wanted: str) -> None:
        if not bad.any():
            return
        row = int(bad.argmax())
        value = self.frame[column].iloc[row]
        if pd.isna(value) or value == "":
            raise self.fault(row, f"column '{column}' is missing")
        raise self.fault(row, f"column '{column}' is '{str(value)[:40]}', not {wanted}")


def located(path: Path, line: int, what: str, remedy: str) -> UserError:
    """Make the one-line error of a malformed file."""
    # A damaged file puts anything into the message, line ends included.
    return UserError(f"{path}, line {line}: " + " ".join(f"{what}; {remedy}".split()))


def read_table(path: Path, layout: Layout, as_text: bool = False) -> Table:
    """Read a table, plain or gzipped.

    Args:
        path: the file; a name that ends with ``.gz`` is decompressed.
        layout: how it is written.
        as_text: keep all fields as text instead of recognising numbers.

    Raises:
        UserError: if the file cannot be read, is empty, cut off, in another encoding, or a line
            has too few or too many fields. Fields that are not numbers are refused by `Table`'s
            methods, for the columns that are asked for.
    """
    text = read_text(path, layout)
    if layout.separator == "::":
        # pandas would fall back to its slow parser for a separator of two characters.
        text = text.replace("::", "\t")
        layout = replace(layout, separator="\t")
    _check_first_line(path, text, layout)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.StringIO(text),
                sep=layout.separator,
                names=list(layout.columns),
                header=0 if layout.header else None,
                index_col=False,
                quoting=csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE,
                dtype=str if as_text else None,
                keep_default_na=False,
                low_memory=False,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError, OverflowError) as error:
        refusal = str(error).splitlines()[0]
        raise _miscounted(path, text, layout) or located(
            path, text.count("\n") + 1, refusal, layout.remedy
        ) from None
    if frame.empty:
        raise located(path, 1, "the file has no rows", layout.remedy)
    # pandas fills up a line that is too short. Counting separators is fast; lines are looked at
    # only where the sum is wrong, or where separators within quotes could make up for it.
    separators = (len(frame) + layout.header) * (len(layout.columns) - 1)
    doubtful = text.count(layout.separator) != separators or (layout.quoted and '"' in text)
    if doubtful and (fault := _miscounted(path, text, layout)):
        raise fault
    return Table(path, layout, text, frame)


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
    """Fields of the first line that is not blank."""
    return next((fields for _, fields in _lines(text, separator, quoted)), [])


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


def _line_of(text: str, layout: Layout, row: int) -> int:
    """Line on which data row ``row`` starts."""
    lines = _lines(text, layout.separator, layout.quoted)
    found = next(itertools.islice(lines, row + layout.header, None), None)
    # pandas counts a last line of two quotes as a row, the csv module as a blank line.
    return len(text.splitlines()) if found is None else found[0]
