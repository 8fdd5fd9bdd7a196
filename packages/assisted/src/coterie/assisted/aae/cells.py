"""Products of a sparse matrix with dense ones: all that the wide layers need."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Cells:
    """Cells of a matrix of B rows; values are given to each product, ``(n,)``, row by row.

    Attributes:
        row: ``(n,)`` int32, ascending.
        column: ``(n,)`` int32.
        start: ``(B + 1,)`` int32, where each row begins.
        n_columns: number of columns.
    """

    row: Tensor
    column: Tensor
    start: Tensor
    n_columns: int

    def __len__(self) -> int:
        return self.column.numel()

    @cached_property
    def by_column(self) -> Tensor:
        """``(n,)`` int64, the cells in the order of columns, and of rows within."""
        if self.column.device.type != "cpu":
            return self.column.argsort(stable=True)
        # Numbers of 16 bits are sorted by counting, ten times as fast as by torch.
        narrow = np.uint16 if self.n_columns <= 1 << 16 else np.int32
        order = np.argsort(self.column.numpy().astype(narrow), kind="stable")
        return torch.as_tensor(order)

    @cached_property
    def _row_by_column(self) -> Tensor:
        return self.row.index_select(0, self.by_column)

    @cached_property
    def _column_start(self) -> Tensor:
        start = torch.zeros(self.n_columns + 1, dtype=torch.int32)
        counts = torch.bincount(self.column, minlength=self.n_columns)
        torch.cumsum(counts, 0, out=start[1:])
        return start

    def times(self, values: Tensor, table: Tensor) -> Tensor:
        """Multiply the sparse matrix with ``table``, ``(n_columns, h)``; gives ``(B, h)``."""
        return _bags(table, self.column, self.start, values)

    def transposed_times(self, values: Tensor, table: Tensor) -> Tensor:
        """Multiply the transposed matrix with ``table``, ``(B, h)``; gives ``(n_columns, h)``."""
        values = values.index_select(0, self.by_column)
        return _bags(table, self._row_by_column, self._column_start, values)

    def column_sums(self, values: Tensor) -> Tensor:
        """Sum the values of each column, ``(n_columns,)``."""
        return values.new_zeros(self.n_columns).index_add_(0, self.column, values)

    def dots(self, left: Tensor, right: Tensor) -> Tensor:
        """Compute the cells ``(n,)`` of ``left @ right.T``.

        Args:
            left: ``(B, h)``.
            right: ``(n_columns, h)``.
        """
        zeros = torch.zeros(len(self), dtype=left.dtype)
        size = (self.start.numel() - 1, self.n_columns)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse ")
            sparse = torch.sparse_csr_tensor(
                self.start, self.column, zeros, size, check_invariants=False
            )
        return torch.sparse.sampled_addmm(sparse, left, right.T, beta=0.0).values()


def _bags(table: Tensor, index: Tensor, start: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows of a table, one a bag: torch's fastest sparse product on a CPU."""
    return F.embedding_bag(
        index, table, start, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
