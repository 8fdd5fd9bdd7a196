"""Residuals as samples: an item with those of all its users, or a user with all its items."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.core.data.interactions.cells import Cells
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Asked:
    """Cells of an organisation's matrix, sample by sample.

    Attributes:
        cells: ``(n_own, d)``; the values are the cells' places in the matrix, row by row.
    """

    cells: Cells

    def back(self, values: Tensor) -> Tensor:
        """Bring values ``(n,)``, sample by sample, into the order of the matrix."""
        return torch.empty_like(values).index_copy_(0, self.cells.values, values)


@dataclass(frozen=True)
class Samples:
    """Residuals at hand in an organisation's rows, of which it predicts its own columns.

    Attributes:
        matrix: ``(m, N)`` residuals, of the columns of all organisations at hand.
        first: where the organisation's own columns begin among them.
        n_own: number of its own columns.
        are_columns: whether a sample is a column, with d = m coordinates, or a row, with d = N.
        order: ``(m,)`` rows in the order in which they are coordinates of columns; None for theirs.

    Example:
        >>> row, column = torch.tensor([0, 2, 1]), torch.tensor([0, 0, 1])
        >>> matrix = Cells.from_pairs(row, column, torch.tensor([2.0, -2.0, 1.0]), 3, 2)
        >>> samples = Samples(matrix, first=1, n_own=1, are_columns=True)
        >>> samples.every.columns.tolists(), samples.own.columns.tolists()
        ([[0, 2], [1]], [[1]])
        >>> mine = Cells.from_pairs(torch.tensor([2, 0]), torch.tensor([0, 0]), torch.ones(2), 3, 1)
        >>> samples.asked(mine).cells.columns.tolists()
        [[0, 2]]
        >>> Samples(matrix, 1, 1, are_columns=False).asked(mine).cells.columns.tolists()
        [[1], [], [1]]
    """

    matrix: Cells
    first: int
    n_own: int
    are_columns: bool
    order: Tensor | None = None

    @cached_property
    def every(self) -> Cells:
        """All samples, ``(n, d)``."""
        return self._ordered(self.matrix).transposed() if self.are_columns else self.matrix

    @cached_property
    def own(self) -> Cells:
        """Those in which the organisation has cells of its own, ``(n_own, d)``."""
        if not self.are_columns:
            return self.matrix
        return self.every.take(torch.arange(self.first, self.first + self.n_own))

    def asked(self, cells: Cells) -> Asked:
        """Name cells of the organisation's own matrix, ``(m, n_own)``, as those of its samples."""
        places = torch.arange(len(cells))
        if self.are_columns:
            named = Cells(cells.columns, places, cells.n_columns)
            return Asked(self._ordered(named).transposed())
        moved = Ragged(cells.columns.values + self.first, cells.columns.offsets)
        return Asked(Cells(moved, places, self.matrix.n_columns))

    def _ordered(self, cells: Cells) -> Cells:
        return cells if self.order is None else cells.take(self.order)


def digest(cells: Cells) -> str:
    """Hash of cells: organisations with the same ones would train the same.

    Example:
        >>> cells = Cells.from_pairs(*torch.tensor([[0], [1]]), torch.ones(1), 2, 2)
        >>> digest(cells) == digest(cells.transposed())
        False
    """
    found = hashlib.sha256(f"{cells.n_rows} {cells.n_columns}".encode())
    for part in (cells.columns.values, cells.columns.offsets, cells.values):
        found.update(part.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def mean_square(residuals: Tensor) -> Tensor:
    """Mean square of residuals, ``()``; 1 where all are 0, or there are none.

    Example:
        >>> mean_square(torch.tensor([2.0, 4.0])).tolist(), mean_square(torch.empty(0)).tolist()
        (10.0, 1.0)
    """
    found = residuals.square().mean()
    return found if bool(found > 0) else torch.ones_like(found)
