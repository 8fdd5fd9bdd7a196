"""Files with named columns that fit into memory, read as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from coterie.core.data.sources.file_forms import columns_hint
from coterie.core.data.sources.own_file import read_columns
from coterie.core.data.sources.tables import Table
from coterie.core.data.sources.text_files import located
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import find_file

_REMEDY = "correct or delete the line"
_MISSING = ("", "\\N", "nan", "NaN", "NULL")


@dataclass(frozen=True)
class Tables:
    """Rows of several files, one after the other."""

    tables: tuple[Table, ...]

    @staticmethod
    def read(paths: Sequence[Path], needed: Sequence[str]) -> Tables:
        """Read all columns.

        Args:
            paths: CSV (``.gz`` too) or Parquet.
            needed: columns that each must have.

        Raises:
            UserError: a file is malformed, or lacks a column.
        """
        return Tables(tuple(_table(path, needed) for path in paths))

    def __len__(self) -> int:
        return sum(len(table) for table in self.tables)

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that all of the files have."""
        first, *others = self.tables
        return tuple(n for n in first.names if all(n in other.names for other in others))

    @property
    def source(self) -> str:
        """Names of the files."""
        return ", ".join(table.path.name for table in self.tables)

    def codes(self, column: str) -> Tensor:
        """Codes of a category's values, ``(n,)`` int64; -1 where missing."""
        codes = self._words(column).dictionary_encode().indices.fill_null(-1)
        return torch.as_tensor(codes.to_numpy(zero_copy_only=False).astype(np.int64))

    def numbers(self, column: str) -> Tensor:
        """Numbers of a column, ``(n,)`` float64.

        Raises:
            UserError: one is missing, or none.
        """
        found = [table.numbers(column) for table in self.tables]
        return torch.as_tensor(np.concatenate(found))

    def label(self, column: str) -> Tensor:
        """Labels, ``(n,)`` uint8.

        Raises:
            UserError: one is neither 0 nor 1.
        """
        found = np.concatenate([table.integers(column) for table in self.tables])
        odd = (found != 0) & (found != 1)
        if odd.any():
            row = int(odd.argmax())
            raise self.fault(row, f"the label '{column}' is {found[row]}, neither 0 nor 1")
        return torch.as_tensor(found.astype(np.uint8))

    def scenarios(
        self, column: str, known: Mapping[str, str]
    ) -> tuple[Tensor, tuple[str, ...], list[str]]:
        """Tell scenarios by the values of a column.

        Args:
            column: its name.
            known: name of the scenario by value; rows of other values belong to none.

        Returns:
            place ``(n,)`` int64 of each row's scenario, -1 for none; the names, of those that have
            rows; and notes.

        Raises:
            UserError: no row belongs to one.
        """
        coded = self._words(column).dictionary_encode()
        there = [None if word is None else known.get(word) for word in coded.dictionary.to_pylist()]
        names = tuple(name for name in known.values() if name in there)
        if not names:
            wanted = ", ".join(known)
            raise UserError(f"{self.source}: no row has a '{column}' of {wanted}: check the file")
        places = np.array([*(names.index(n) if n else -1 for n in there), -1])
        found = places[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        notes = []
        if none := int((found < 0).sum()):
            notes.append(f"{none:,} rows of another '{column}' are left out")
        if len(names) == 1:
            notes.append(f"there is one scenario only, '{column}' is {names[0]} in all rows")
        return torch.as_tensor(found), names, notes

    def fault(self, row: int, what: str) -> UserError:
        """Make the error for a row."""
        for table in self.tables:
            if row < len(table):
                return table.fault(row, what)
            row -= len(table)
        raise IndexError(row)

    def _words(self, column: str) -> pa.Array:
        """Text of a column, null where missing."""
        parts = [table.values(column).cast(pa.large_string()) for table in self.tables]
        words = pc.utf8_trim_whitespace(pa.concat_arrays(parts))
        absent = pc.is_in(words, value_set=pa.array(_MISSING, words.type))
        return pc.if_else(absent, pa.scalar(None, words.type), words)


def file_of(folder: Path, *names: str) -> Path:
    """Find the first of some files, gzipped or not.

    Raises:
        UserError: there is none.
    """
    found = find_file(folder, *names)
    if found is None:
        raise UserError(f"{folder} has no {' or '.join(names)} (nor .gz): put it there")
    return found


def _table(path: Path, needed: Sequence[str]) -> Table:
    names = read_columns(path, needed, remedy=_REMEDY).names
    for column in needed:
        if column not in names:
            hint = columns_hint(column, names)
            raise located(path, 1, f"no column '{column}'", hint)
    return read_columns(path, names, remedy=_REMEDY)
