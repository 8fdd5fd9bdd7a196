"""Which cells of a matrix are observed: constant over the rounds, shared by organisations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.assisted.aae.cells import Cells, transposed
from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class CellBatches:
    """Cells of several batches of rows.

    Attributes:
        cells: of each batch.
        place: ``(n,)`` int64, where the values are of the cells of all batches.
    """

    cells: list[Cells]
    place: Tensor

    def take(self, values: Tensor) -> tuple[Tensor, ...]:
        """Take values ``(nnz,)`` of the whole pattern to each batch's cells, ``(n_b,)`` each."""
        return values.index_select(0, self.place).split([len(cells) for cells in self.cells])


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
        >>> both = pattern.batches(torch.tensor([0, 1]), 2)
        >>> both.cells[0].column.tolist(), both.place.tolist()
        ([0, 1, 3], [1, 2, 0])
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

    def batches(self, rows: Tensor, size: int) -> CellBatches:
        """Sort the cells of batches of rows; several batches at once take fewer calls of torch.

        Args:
            rows: ``(R,)`` int64, those of all batches.
            size: rows a batch; the last one may be smaller.
        """
        lengths, offsets = self.columns.lengths[rows], self.columns.offsets
        start = F.pad(lengths.cumsum(0), (1, 0))
        owner = torch.repeat_interleave(lengths)
        place = (offsets[rows] - start[:-1]).index_select(0, owner).add_(torch.arange(len(owner)))
        column = self.columns.values.index_select(0, place)
        # One transposition for all batches, as if each had columns of its own.
        turn, number = torch.arange(len(rows), dtype=torch.int32), -(-len(rows) // size)
        apart = (turn // size * self.n_columns).index_select(0, owner).add_(column)
        begins, row, order = transposed(start.int(), apart, number * self.n_columns)
        ordered, row = column.index_select(0, order), (turn % size).index_select(0, row)
        missing = number * size - len(rows)
        row_start = _within(F.pad(start, (0, missing), value=len(owner)), size)
        column_start, by_row = _within(begins, self.n_columns), order.long()
        ends = [*start[::size].tolist(), len(owner)]
        cells = [
            Cells(
                row=row[at:end],
                column=ordered[at:end],
                column_start=column_start[batch],
                by_row=by_row[at:end] - at,
                row_start=row_start[batch, : len(rows) - batch * size + 1],
                row_columns=column[at:end],
            )
            for batch, (at, end) in enumerate(pairwise(ends[: number + 1]))
        ]
        return CellBatches(cells, place.index_select(0, order))


def _within(start: Tensor, size: int) -> Tensor:
    """Cut ``(G * size + 1,)`` starts into those of G batches, each from 0, ``(G, size + 1)``."""
    if len(start) == 1:
        return start.new_zeros(0, size + 1, dtype=torch.int32)
    cut = start.unfold(0, size + 1, size)
    return (cut - cut[:, :1]).int()
