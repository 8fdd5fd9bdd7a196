"""Read text tables so that a fault is one line that names the file and the line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from coterie.core.data.sources.text_columns import (
    check_quotes,
    floats,
    gathered,
    is_text,
    whole_numbers,
)
from coterie.core.data.sources.text_files import (
    Layout,
    NoRows,
    check_text,
    first_line,
    for_parser,
    head,
    lines_of,
    located,
    rows_of,
)
from coterie.core.errors import UserError

_BLOCK = 1 << 18  # bytes of text that are parsed at a time
_LARGEST_BLOCK = 1 << 30


@dataclass(frozen=True)
class Table:
    """A parsed file that knows where its rows stand, so that a fault names the place.

    Attributes:
        path: the file.
        names: all columns that it has.
        columns: those that are read. One that is dictionary-encoded is a single chunk whose words
            all occur.
        place: line (or row) of the file on which a row of the table starts.
        remedy: what to do about a malformed file.
        unit: ``line``, or ``row`` where the file is no text.
        optional: whether rows may lack columns that others have, as in JSON lines.
        parts: of a folder: the first row of each file, and a table that knows its places.
    """

    path: Path
    names: tuple[str, ...]
    columns: pa.Table
    place: Callable[[int], int]
    remedy: str
    unit: str = "line"
    optional: bool = False
    parts: tuple[tuple[int, Table], ...] = ()

    def __len__(self) -> int:
        return len(self.columns)

    def values(self, column: str) -> pa.Array:
        """Column as one Arrow array, as it is in the file."""
        found = self.columns[column]
        if pa.types.is_dictionary(found.type):
            found = found.cast(found.type.value_type)
        if pa.types.is_string(found.type):
            found = found.cast(pa.large_string())  # one array holds no more than 2 GB of the other
        return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)

    def whole(self, column: str) -> np.ndarray | None:
        """Column as ``(n,)`` int64 where all of it is written in whole numbers, else None."""
        return whole_numbers(self.columns[column])

    def integers(self, column: str) -> np.ndarray:
        """Column as ``(n,)`` int64.

        Raises:
            UserError: naming the first line with anything else.
        """
        if (whole := self.whole(column)) is not None:
            return whole
        number = floats(self.columns[column])
        with np.errstate(invalid="ignore"):
            bad = ~(np.isfinite(number) & (number % 1 == 0) & (np.abs(number) < 2.0**63))
        self._refuse(bad, column, "a whole number")
        return number.astype(np.int64)

    def numbers(self, column: str) -> np.ndarray:
        """Column as ``(n,)`` float64, all finite.

        Raises:
            UserError: naming the first line with anything else.
        """
        number = floats(self.columns[column])
        self._refuse(~np.isfinite(number), column, "a number")
        return number

    def text(self, column: str) -> pa.Array:
        """Column of text or whole numbers as ``(n,)`` text, empty where missing.

        Raises:
            UserError: naming the first line where the field holds a NUL byte; or the column is of
                another type.
        """
        self._check_words(column)
        values = self.values(column).cast(pa.large_string())
        if values.null_count:
            values = values.fill_null("")
        nul = pc.match_substring(values, "\0").to_numpy(zero_copy_only=False)
        self.refuse(nul, f"column '{column}' holds a NUL byte")
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
        self._refuse_missing(column)
        values = self.text(column)
        blank = pc.equal(pc.utf8_trim_whitespace(values), "").to_numpy(zero_copy_only=False)
        self.refuse(blank, f"column '{column}' is empty")
        return values

    def coded(self, column: str, blank: bool = False) -> pa.DictionaryArray:
        """Column as `filled` gives it, each word once: int32 codes and large text.

        Args:
            column: its name.
            blank: whether fields may be blank or missing, as `text` lets them.

        Raises:
            UserError: as `filled`.
        """
        if not blank:
            self._refuse_missing(column)
        self._check_words(column)
        found = self.columns[column]
        if found.null_count:
            found = found.cast(pa.large_string()).fill_null("")
        if not pa.types.is_dictionary(found.type):
            found = found.dictionary_encode()
        coded = found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
        words = coded.dictionary.cast(pa.large_string())
        faults = [(pc.match_substring(words, "\0"), "holds a NUL byte")]
        if not blank:
            faults.append((pc.equal(pc.utf8_trim_whitespace(words), ""), "is empty"))
        for wrong, what in faults:
            if pc.any(wrong).as_py():
                row = wrong.to_numpy(zero_copy_only=False)[coded.indices.to_numpy()].argmax()
                raise self.fault(int(row), f"column '{column}' {what}")
        return pa.DictionaryArray.from_arrays(coded.indices, words)

    def without(self, column: str) -> Table:
        """The table without a column that is no longer needed, so that its memory is free."""
        return replace(self, columns=self.columns.drop_columns([column]))

    def fault(self, row: int, what: str) -> UserError:
        """Make the error for row ``row`` of the table."""
        for start, part in reversed(self.parts):
            if row >= start:
                return part.fault(row - start, what)
        return located(self.path, self.place(row), what, self.remedy, self.unit)

    def refuse(self, wrong: np.ndarray, what: str) -> None:
        """Raise the error for the first row that is wrong, ``(n,)`` bool, if there is one."""
        if wrong.any():
            raise self.fault(int(wrong.argmax()), what)

    def _check_words(self, column: str) -> None:
        """Refuse a column of another type than text or whole numbers."""
        found = self.columns[column]
        kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
        if not (is_text(kind) or pa.types.is_integer(kind)):
            raise UserError(
                f"{self.path}: column '{column}' is of type {kind}: ids, titles and parts "
                "are text or whole numbers"
            )

    def _refuse_missing(self, column: str) -> None:
        found = self.columns[column]
        if found.null_count:
            self._refuse(found.is_null().to_numpy(), column, "there")

    def _refuse(self, bad: np.ndarray, column: str, wanted: str) -> None:
        if not bad.any():
            return
        row = int(bad.argmax())
        value = self.columns[column][row].as_py()
        if value is None or value == "":
            raise self.fault(row, f"column '{column}' is missing")
        raise self.fault(row, f"column '{column}' is '{str(value)[:40]}', not {wanted}")


def read_table(
    path: Path,
    layout: Layout,
    repeated: Collection[str] = (),
    numbers: Collection[str] = (),
) -> Table:
    """Read a table, plain or packed; arguments as of `parse_table`.

    Raises:
        UserError: as `parse_table` and `coterie.core.data.sources.text_files.check_text`.
    """
    return parse_table(path, layout, check_text(path, layout), None, repeated, numbers)


def parse_table(
    path: Path,
    layout: Layout,
    quotes: int,
    only: Collection[str] | None = None,
    repeated: Collection[str] = (),
    numbers: Collection[str] = (),
) -> Table:
    """Parse a file, some megabytes of its text at a time.

    Args:
        path: of the file.
        layout: how it is written.
        quotes: number of quotes in it, from `coterie.core.data.sources.text_files.check_text`.
        only: the columns to read; None for all.
        repeated: columns whose values repeat, ids for instance: each different one is kept once.
        numbers: columns that should be numbers: whole ones are kept as such, not as text.

    Raises:
        UserError: if the file has no rows, a line has too few or too many fields, or quotes are
            not strict, see `coterie.core.data.sources.text_columns.check_quotes`. Fields that
            are not numbers are refused by `Table`'s methods, for the columns that are asked for.
    """
    _check_first_line(path, head(path, layout), layout)
    chosen = [c for c in layout.columns if only is None or c in only]
    kinds = dict.fromkeys(chosen, "text")
    kinds |= {c: "numbers" for c in chosen if c in numbers}
    kinds |= {c: "words" for c in chosen if c in repeated}
    quoted = layout.quoted and quotes > 0
    if quoted:
        check_quotes(path, layout)
    try:
        try:
            columns = _parsed(path, layout, quoted, kinds, _BLOCK)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
            columns = _parsed(path, layout, quoted, kinds, _LARGEST_BLOCK)  # of a very long row
    except pa.ArrowInvalid as error:
        raise _miscounted(path, layout, str(error)) from None
    if not len(columns):
        raise NoRows(str(located(path, 1, "the file has no rows", layout.remedy)))
    return Table(path, layout.columns, columns, partial(_line_of, path, layout), layout.remedy)


def _parsed(
    path: Path, layout: Layout, quoted: bool, kinds: dict[str, str], block: int
) -> pa.Table:
    """Columns of some kinds, see `gathered`, without the header line."""
    with for_parser(path, layout) as stream:
        reader = arrow_csv.open_csv(
            pa.PythonFile(stream, mode="r"),
            arrow_csv.ReadOptions(
                column_names=list(layout.columns), block_size=block, use_threads=False
            ),
            arrow_csv.ParseOptions(
                delimiter=layout.mark,
                quote_char='"' if quoted else False,
                newlines_in_values=quoted,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(kinds, pa.string()),
                include_columns=list(kinds),
                strings_can_be_null=False,
            ),
        )
        return gathered(reader, kinds, skip=int(layout.header))


def _check_first_line(path: Path, text: str, layout: Layout) -> None:
    fields = first_line(text, layout.mark, layout.quoted)
    wanted = ", ".join(layout.columns)
    if len(fields) != len(layout.columns):
        what = f"expected {len(layout.columns)} columns ({wanted}), found {len(fields)}"
        raise located(path, 1, what, layout.remedy)
    if layout.header and tuple(field.strip() for field in fields) != layout.columns:
        raise located(path, 1, f"expected the header {wanted}", layout.remedy)


def _miscounted(path: Path, layout: Layout, otherwise: str) -> UserError:
    """Find the first line with too few or too many fields; say something else if none has."""
    line, count = 0, len(layout.columns)
    try:
        for line, fields in rows_of(lines_of(path, layout), layout.mark, layout.quoted):
            if len(fields) != count:
                what = f"expected {count} columns, found {len(fields)}"
                return located(path, line, what, layout.remedy)
    except csv.Error as fault:
        return located(path, line + 1, str(fault), layout.remedy)
    return located(path, line, otherwise, layout.remedy)


def _line_of(path: Path, layout: Layout, row: int) -> int:
    """Line on which data row ``row`` starts."""
    rows = rows_of(lines_of(path, layout), layout.mark, layout.quoted)
    line = 0
    with suppress(csv.Error):  # a field beyond the csv module's limit: it is after this line
        for _ in range(row + layout.header + 1):
            line = next(rows, (line, []))[0]
    return line
