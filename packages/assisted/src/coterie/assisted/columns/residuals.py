"""Residuals of columns, over the rows that they have in common: what models of columns learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.core.data.interactions.cells import Cells


@dataclass(frozen=True)
class Columns:
    """Residuals of n columns over m rows, of which an organisation predicts its own columns.

    Attributes:
        cells: ``(n, m)``, a row a column; the values are pseudo-residuals.
        first: where the organisation's own columns begin among them.
        n_own: number of its own columns.

    Example:
        >>> row, column = torch.tensor([0, 2, 1]), torch.tensor([0, 0, 1])
        >>> matrix = Cells.from_pairs(row, column, torch.tensor([2.0, -2.0, 1.0]), 3, 2)
        >>> columns = Columns(matrix.transposed(), first=1, n_own=1)
        >>> columns.own.columns.tolists()
        [[1]]
    """

    cells: Cells
    first: int
    n_own: int

    @cached_property
    def own(self) -> Cells:
        """Cells of its own columns, ``(n_own, m)``."""
        return self.cells.take(torch.arange(self.first, self.first + self.n_own))


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


@dataclass(frozen=True)
class Turned:
    """Cells of an organisation's matrix, ``(m, n_own)``, column by column.

    Attributes:
        cells: ``(n_own, m)``; the values are the cells' places in the matrix, row by row.

    Example:
        >>> row, column = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
        >>> turned = Turned.of(Cells.from_pairs(row, column, torch.zeros(3), 2, 2))
        >>> turned.cells.columns.tolists(), turned.back(torch.tensor([1.0, 3.0, 2.0])).tolist()
        ([[0, 1], [0]], [1.0, 2.0, 3.0])
    """

    cells: Cells

    @staticmethod
    def of(cells: Cells) -> Turned:
        """Turn them."""
        places = Cells(cells.columns, torch.arange(len(cells)), cells.n_columns)
        return Turned(places.transposed())

    def back(self, values: Tensor) -> Tensor:
        """Bring values ``(n,)``, column by column, into the order of the matrix."""
        return torch.empty_like(values).index_copy_(0, self.cells.values, values)
