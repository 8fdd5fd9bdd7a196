"""Which cells of a matrix are observed: constant over the rounds, shared by organisations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.assisted.aae.cells import Cells
from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class Pattern:
    """The observed cells of a matrix of m rows; their values are kept elsewhere, ``(nnz,)``.

    Nothing of it changes, so organisations in one process may share an object.

    Attributes:
        columns: the columns of each row, in [0, n_columns), each at most once a row; kept as int32.
        n_columns: number of columns.

    Raises:
        ValueError: a column is out of range.

    Example:
        >>> pattern = Pattern(Ragged.from_lists([[3], [0, 1]]), 4)
        >>> pattern.cells(torch.tensor([1]))[0].column.tolist()
        [0, 1]
    """

    columns: Ragged
    n_columns: int

    def __post_init__(self) -> None:
        column = self.columns.values
        if column.numel() and not 0 <= int(column.min()) <= int(column.max()) < self.n_columns:
            raise ValueError(f"a column is not in 0..{self.n_columns - 1}")
        object.__setattr__(self, "columns", Ragged(column.int(), self.columns.offsets))

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def nnz(self) -> int:
        """Number of observed cells."""
        return self.columns.values.numel()

    def cells(self, rows: Tensor) -> tuple[Cells, Tensor]:
        """Cells of some rows.

        Args:
            rows: ``(B,)`` int64.

        Returns:
            The cells, row by row, and where their values are, ``(n,)`` int64.
        """
        lengths, offsets = self.columns.lengths[rows], self.columns.offsets
        start = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=start[1:])
        row = torch.repeat_interleave(lengths)
        shift = offsets[rows] - start[:-1]
        place = shift.index_select(0, row).add_(torch.arange(len(row)))
        column = self.columns.values.index_select(0, place)
        return Cells(row.int(), column, start.int(), self.n_columns), place
