"""Cells of a matrix that are known (ratings, residuals), row by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.tensors.masks import where_true
from coterie.core.tensors.ordering import ascending
from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class Cells:
    """Known cells of an ``(n_rows, n_columns)`` matrix; no cell twice.

    Attributes:
        columns: ascending column numbers of each row, int64.
        values: ``(n,)`` float32, aligned with ``columns.values``.
        n_columns: number of columns, empty ones included.

    Example:
        >>> row, column = torch.tensor([1, 0, 1]), torch.tensor([2, 1, 0])
        >>> cells = Cells.from_pairs(row, column, torch.tensor([5.0, 3.0, 4.0]), 2, 3)
        >>> cells.columns.tolists(), cells.values.tolist()
        ([[1], [0, 2]], [3.0, 4.0, 5.0])
        >>> cells.transposed().columns.tolists()
        [[1], [0], [1]]
    """

    columns: Ragged
    values: Tensor  # (n,) float32
    n_columns: int

    @staticmethod
    def from_pairs(
        rows: Tensor, columns: Tensor, values: Tensor, n_rows: int, n_columns: int
    ) -> Cells:
        """Sort cells that come in any order.

        Args:
            rows: ``(n,)`` int64 in [0, n_rows).
            columns: ``(n,)`` int64 in [0, n_columns).
            values: ``(n,)``.
            n_rows: number of rows, empty ones included.
            n_columns: number of columns, empty ones included.

        Raises:
            ValueError: a number is out of range, or a cell is there twice.
        """
        check_range("row", rows, n_rows)
        check_range("column", columns, n_columns)
        place = rows * n_columns + columns
        order = ascending(place, n_rows * n_columns)
        check_distinct(place[order], n_columns)
        lengths = torch.bincount(rows, minlength=n_rows)
        return Cells(Ragged.from_lengths(columns[order], lengths), values[order], n_columns)

    def __len__(self) -> int:
        return self.values.numel()

    @property
    def n_rows(self) -> int:
        """Number of rows, empty ones included."""
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        """Row number of every cell, ``(n,)`` int64, ascending."""
        return self.columns.rows

    def transposed(self) -> Cells:
        """The cells of the transposed matrix."""
        return Cells.from_pairs(
            self.columns.values, self.rows, self.values, self.n_columns, self.n_rows
        )

    def take(self, index: Tensor) -> Cells:
        """Rows ``index`` (``(m,)`` int64), in that order, copied."""
        values = Ragged(self.values, self.columns.offsets).take(index).values
        return Cells(self.columns.take(index), values, self.n_columns)

    def of_columns(self, index: Tensor) -> Cells:
        """Cells of some columns, numbered anew.

        Args:
            index: ``(k,)`` int64, ascending; column ``index[j]`` becomes j.

        Raises:
            ValueError: the numbers do not ascend, or are out of range.
        """
        check_range("column", index, self.n_columns)
        if bool((index[1:] <= index[:-1]).any()):
            raise ValueError("the columns to keep must ascend")
        number = torch.full((self.n_columns,), -1)
        number[index] = torch.arange(index.numel())
        found = number[self.columns.values]
        kept = where_true(found >= 0)
        lengths = torch.bincount(self.rows[kept], minlength=self.n_rows)
        return Cells(Ragged.from_lengths(found[kept], lengths), self.values[kept], index.numel())

    def to_dense(self, missing: float = 0.0) -> Tensor:
        """The whole matrix, ``(n_rows, n_columns)``, with ``missing`` in the other cells."""
        table = self.values.new_full((self.n_rows, self.n_columns), missing)
        table[self.rows, self.columns.values] = self.values
        return table


def check_range(name: str, numbers: Tensor, above: int) -> None:
    """Refuse numbers outside [0, above).

    Raises:
        ValueError: naming what they are numbers of.
    """
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < above:
        low, high = int(numbers.min()), int(numbers.max())
        raise ValueError(f"{name} numbers run from {low} to {high}, outside 0..{above - 1}")


def check_distinct(places: Tensor, n_columns: int) -> None:
    """Refuse cells that are there twice, by ascending places: row times ``n_columns`` plus column.

    Raises:
        ValueError: naming one.
    """
    twice = (places[1:] == places[:-1]).nonzero()
    if twice.numel():
        row, column = divmod(int(places[twice[0, 0]]), n_columns)
        raise ValueError(f"the cell in row {row} and column {column} is there twice")
