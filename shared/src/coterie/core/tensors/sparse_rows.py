"""Changes of rows that are sums of outer products with few rows each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.kernels import switch
from coterie.core.tensors.rows import Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class SparseFactoredRows(Rows):
    """What `FactoredRows` is, with item factors that hold the touched rows alone.

    Client c changes the table by the sum of ``outer(l, right[k])`` over its terms k, those with
    ``owner[k] == c``; l is 0 but for what the entries j of the term add, ``left[j]`` at
    ``index[j]``.

    Attributes:
        owner: ``(K,)`` int64, the client of each term.
        index: ``(m,)`` int32 row of each entry.
        left: ``(m,)`` item factor of each entry; 0 is no change. Entries of one row in a term add
            up, and have the same sign.
        offsets: ``(K + 1,)`` int64 first entry of each term, and m at the end.
        right: ``(K, d)`` client factor.
        count: C.
        n_rows: n.

    Example:
        >>> one, offsets = torch.tensor([1], dtype=torch.int32), torch.tensor([0, 1])
        >>> owner, right = torch.tensor([0]), torch.ones(1, 3)
        >>> rows = SparseFactoredRows(owner, one, torch.tensor([2.0]), offsets, right, 1, 2)
        >>> rows.sum().tolist(), rows.touched().tolist()
        ([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]], [1])
    """

    owner: Tensor
    index: Tensor
    left: Tensor
    offsets: Tensor
    right: Tensor
    count: int
    n_rows: int

    @property
    def n_clients(self) -> int:
        """Number of clients C."""
        return self.count

    @property
    def table_shape(self) -> tuple[int, int]:
        """Of the table that is changed, ``(n, d)``."""
        return self.n_rows, self.right.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.right.dtype

    def sum(self) -> Tensor:
        """Sum over the clients, ``(n, d)``."""
        total = self.right.new_zeros(self.table_shape)
        if self._compiled():
            from coterie.core.kernels.products import add_products  # loads numba

            parts = (self.index, self.left, self.offsets, self.right, total)
            add_products(*[part.numpy() for part in parts])
            return total
        values = self.left[:, None] * self.right[self._term]
        return total.index_add_(0, self.index.to(torch.int64), values)

    def dense(self) -> Tensor:
        """Materialise, ``(C, n, d)``."""
        return self.wire().dense()

    def finite(self) -> Tensor:
        """Which clients' changes hold no NaN or infinity, ``(C,)`` bool."""
        broken = torch.zeros(self.n_clients, dtype=torch.int64)
        bad = ~(self._by_term(self.left) + self.right.sum(1)).isfinite()
        return broken.index_add_(0, self.owner, bad.long()) == 0

    def squared_norm(self) -> Tensor:
        """Squared Frobenius norm of each client's change, ``(C,)``."""
        return self.wire().squared_norm()

    def norm_bound(self) -> Tensor:
        """An upper bound of each client's Frobenius norm, ``(C,)``: one pass."""
        if self._compiled():
            from coterie.core.kernels.products import bound_norms  # loads numba

            parts = (self.left, self.offsets, self.owner, self.right)
            bounds = bound_norms(*[part.numpy() for part in parts], self.n_clients)
            return torch.from_numpy(bounds)
        term = self._by_term(self.left.abs()) * torch.linalg.vector_norm(self.right, dim=1)
        return term.new_zeros(self.n_clients).index_add_(0, self.owner, term)

    def scaled(self, factor: Tensor) -> SparseFactoredRows:
        """Multiply each client's change by ``factor``, ``(C,)``."""
        return replace(self, right=self.right * factor[self.owner, None])

    def take(self, index: Tensor) -> SparseFactoredRows:
        """Changes of the clients at the positions ``index``, ascending ``(K,)`` int64."""
        place = torch.full((self.n_clients,), -1)
        place[index] = torch.arange(index.numel())
        kept = (place[self.owner] >= 0).nonzero().flatten()
        entries = Ragged(self.index, self.offsets).take(kept)
        left = Ragged(self.left, self.offsets).take(kept).values
        owner, right = place[self.owner[kept]], self.right[kept]
        return SparseFactoredRows(
            owner, entries.values, left, entries.offsets, right, index.numel(), self.n_rows
        )

    def concatenate(self, other: SparseFactoredRows) -> SparseFactoredRows:
        """Changes of both groups of clients, one after the other."""
        return SparseFactoredRows(
            torch.cat([self.owner, other.owner + self.n_clients]),
            torch.cat([self.index, other.index]),
            torch.cat([self.left, other.left]),
            torch.cat([self.offsets, other.offsets[1:] + self.offsets[-1]]),
            torch.cat([self.right, other.right]),
            self.n_clients + other.n_clients,
            self.n_rows,
        )

    def touched(self) -> Tensor:
        """Number of rows that each client changed, ``(C,)`` int64."""
        if self._compiled():
            from coterie.core.kernels.products import count_rows  # loads numba

            parts = (self.index, self.left, self.offsets, self.owner)
            counts = count_rows(*[part.numpy() for part in parts], self.n_rows, self.n_clients)
            return torch.from_numpy(counts)
        return torch.bincount(self._cells()[0] // self.n_rows, minlength=self.n_clients)

    def wire(self) -> TouchedRows:
        """The form that travels: row numbers and values of the rows with a factor."""
        cell, place, entry = self._cells()
        values = self.right.new_zeros(cell.numel(), self.width)
        values.index_add_(0, place, self.left[entry, None] * self.right[self._term[entry]])
        client, row = cell // self.n_rows, cell % self.n_rows
        return TouchedRows(Ragged.from_pairs(client, row, self.n_clients), values, self.n_rows)

    @property
    def _term(self) -> Tensor:
        """Term of each entry, ``(m,)`` int64."""
        return Ragged(self.index, self.offsets).rows

    def _cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Changed rows as ``client * n + row``, ascending; of each entry that is not 0, which."""
        entry = self.left.nonzero().flatten()
        cell = self.owner[self._term[entry]] * self.n_rows + self.index[entry]
        found, place = cell.unique(return_inverse=True)
        return found, place, entry

    def _by_term(self, values: Tensor) -> Tensor:
        """Sum one value an entry over each term, ``(K,)``."""
        if self._on_cpu() and bool((self.offsets.diff() > 0).all()):
            with np.errstate(over="ignore", invalid="ignore"):
                found = np.add.reduceat(values.numpy(), self.offsets[:-1].numpy())
            return torch.from_numpy(found)
        return values.new_zeros(self.owner.numel()).index_add_(0, self._term, values)

    def _on_cpu(self) -> bool:
        return self.left.device.type == "cpu"

    def _compiled(self) -> bool:
        return self._on_cpu() and switch.available() and switch.loaded()
