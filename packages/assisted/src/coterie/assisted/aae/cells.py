"""Cells of sparse matrices: their products, which ones are observed, what an organisation sees."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Cells:
    """Cells of a matrix of B rows, in the order of columns, and of rows within.

    The values of the cells ``(n,)`` are given to each product, in the same order. It is that of
    columns since a batch has fewer rows than columns: where a product goes through the columns one
    by one, what it needs of the rows stays in the cache. Up to about 15 % of observed cells this is
    faster than dense products (at 5 % three to four times); the densest public ratings have 6 %.

    Attributes:
        row: ``(n,)`` int32.
        column: ``(n,)`` int32, ascending.
        column_start: ``(n_columns + 1,)`` int32, where each column begins.
        by_row: ``(n,)`` int64, the place of each cell in the order of rows.
        row_start: ``(B + 1,)`` int32, where each row begins in that order.
        row_columns: ``(n,)`` int32, the columns in that order.
    """

    row: Tensor
    column: Tensor
    column_start: Tensor
    by_row: Tensor
    row_start: Tensor
    row_columns: Tensor

    def __len__(self) -> int:
        return self.column.numel()

    @property
    def n_rows(self) -> int:
        """Number of rows B."""
        return self.row_start.numel() - 1

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.column_start.numel() - 1

    def in_rows(self, values: Tensor) -> Tensor:
        """Bring values of the cells, ``(n,)``, into the order of rows."""
        return torch.empty_like(values).index_copy_(0, self.by_row, values)

    def times(self, values: Tensor, table: Tensor) -> Tensor:
        """Multiply the sparse matrix with ``table``, ``(n_columns, h)``; gives ``(B, h)``."""
        return _bags(table, self.row_columns, self.row_start, self.in_rows(values))

    def transposed_times(self, values: Tensor, table: Tensor) -> Tensor:
        """Multiply the transposed matrix with ``table``, ``(B, h)``; gives ``(n_columns, h)``."""
        return _bags(table, self.row, self.column_start, values)

    def column_sums(self, values: Tensor) -> Tensor:
        """Sum the values of each column, ``(n_columns,)``."""
        return values.new_zeros(self.n_columns).index_add_(0, self.column, values)

    def dots(self, left: Tensor, right: Tensor) -> Tensor:
        """Compute the cells ``(n,)`` of ``left @ right.T``.

        Args:
            left: ``(B, h)``.
            right: ``(n_columns, h)``.
        """
        if left.device.type != "cpu":  # a batch of dense outputs is nothing to a GPU
            return (left @ right.T)[self.row, self.column]
        _say_nothing()
        zeros, size = left.new_zeros(len(self)), (self.n_columns, self.n_rows)
        where = torch.sparse_csr_tensor(
            self.column_start, self.row, zeros, size, check_invariants=False
        )
        return torch.sparse.sampled_addmm(where, right, left.T, beta=0.0).values()


@cache
def _say_nothing() -> None:
    """Let torch say now, unheard, what it says once a process: that sparse tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1).to_sparse_csr()


def _bags(table: Tensor, index: Tensor, start: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows of a table, one a bag: torch's fastest sparse product on a CPU."""
    return F.embedding_bag(
        index, table, start, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def transposed(start: Tensor, column: Tensor, n_columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bring cells from the order of rows into that of columns, and of rows within.

    Args:
        start: ``(R + 1,)`` int32, where each row begins.
        column: ``(n,)`` int32, in the order of rows.
        n_columns: number of columns.

    Returns:
        Where each column begins ``(n_columns + 1,)``, the rows ``(n,)``, and the places in the
        order of rows ``(n,)``, all int32.
    """
    if column.device.type != "cpu":
        return _transposed_by_sorting(start, column, n_columns)
    # Scipy counts, where torch sorts: an eighth of the time.
    place = torch.arange(len(column), dtype=torch.int32)
    cells = (place.numpy(), column.numpy(), start.numpy())
    turned = sparse.csr_matrix(cells, shape=(len(start) - 1, n_columns)).tocsc()
    begins, row, order = map(torch.as_tensor, (turned.indptr, turned.indices, turned.data))
    return begins, row, order


def _transposed_by_sorting(
    start: Tensor, column: Tensor, n_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`transposed` elsewhere than on the CPU."""
    order = column.argsort(stable=True)
    row = torch.repeat_interleave(start.diff()).index_select(0, order)
    begins = F.pad(torch.bincount(column, minlength=n_columns).cumsum(0), (1, 0))
    return begins.int(), row.int(), order.int()


# Which cells of a matrix are observed: constant over the rounds, shared by organisations.


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


# What an organisation's autoencoder sees of each row: its own ratings, and side information.


@dataclass(frozen=True)
class Inputs:
    """Inputs of m rows.

    Attributes:
        columns: the columns that each row has rated, integers in [0, n_columns), each at most once
            a row.
        values: ``(nnz,)`` the ratings, as ``columns.values``.
        n_columns: columns of the organisation's own ratings.
        sides: dense features ``(m, d)`` of each kind of side information, by name.
        places: ``(n_columns,)`` int64, which column of the targets each own column is; needed only
            by plans that leave visible targets out.

    Raises:
        ValueError: sizes do not fit together, or a column is out of range.

    Example:
        >>> import torch
        >>> inputs = Inputs(Ragged.from_lists([[0, 2], []]), torch.tensor([5.0, 3.0]), 3)
        >>> len(inputs)
        2
    """

    columns: Ragged
    values: Tensor
    n_columns: int
    sides: Mapping[str, Tensor] = field(default_factory=dict)
    places: Tensor | None = None

    def __post_init__(self) -> None:
        if self.values.shape != self.columns.values.shape:
            raise ValueError("a rating is needed for each cell of the inputs")
        for name, features in self.sides.items():
            if features.dim() != 2 or len(features) != len(self.columns):
                raise ValueError(f"side information '{name}' must be ({len(self.columns)}, d)")
        if self.places is not None and self.places.shape != (self.n_columns,):
            raise ValueError(f"places must be given for all {self.n_columns} columns")
        _ = self.pattern

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def pattern(self) -> Pattern:
        """Where the ratings are."""
        return Pattern(self.columns, self.n_columns)
