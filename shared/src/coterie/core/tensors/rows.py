"""Changes of the rows of a table, one change a client, without a dense table per client."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from coterie.core.tensors.stacked import Ragged, Stacked

R = TypeVar("R", bound="Rows")
INDEX_BYTES = 4  # a row number travels as int32


class Rows(Stacked):
    """Additive changes to a table ``(n, d)``, stacked over C clients."""

    @property
    @abstractmethod
    def table_shape(self) -> tuple[int, int]:
        """Of the table that is changed, ``(n, d)``."""

    @property
    def width(self) -> int:
        """Row width d."""
        return self.table_shape[1]

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the values."""

    @property
    def element_size(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize

    @abstractmethod
    def sum(self) -> Tensor:
        """Sum over the clients, ``(n, d)``."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Materialise, ``(C, n, d)``."""

    @abstractmethod
    def squared_norm(self) -> Tensor:
        """Squared Frobenius norm of each client's change, ``(C,)``."""

    def norm_bound(self) -> Tensor:
        """An upper bound of each client's Frobenius norm, ``(C,)``; not finite for what is not."""
        return self.squared_norm().sqrt()

    @abstractmethod
    def scaled(self: R, factor: Tensor) -> R:
        """Multiply each client's change by ``factor``, ``(C,)``."""

    @abstractmethod
    def touched(self) -> Tensor:
        """Number of rows that each client changed, ``(C,)`` int64."""

    @abstractmethod
    def wire(self) -> TouchedRows | DenseRows:
        """The form that travels: row numbers and values, or the whole table."""

    def nbytes(self) -> Tensor:
        """Bytes of each client's changed rows on the wire, ``(C,)``: row numbers and values."""
        return self.touched() * (self.width * self.element_size + INDEX_BYTES)


@dataclass(frozen=True)
class FactoredRows(Rows):
    """Changes that are sums of outer products, as the SGD steps of a bilinear score give.

    Client c changes the table by the sum of ``outer(left[k], right[k])`` over its terms k, those
    with ``owner[k] == c``. The sum over clients is one matrix product.

    Attributes:
        owner: ``(K,)`` int64, the client of each term.
        left: ``(K, n)`` item factor, 0 for rows that the step did not touch.
        right: ``(K, d)`` client factor.
        count: C.

    Example:
        >>> rows = FactoredRows(torch.tensor([0]), torch.tensor([[0., 2.]]), torch.ones(1, 3), 1)
        >>> rows.sum().tolist()
        [[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]
    """

    owner: Tensor
    left: Tensor
    right: Tensor
    count: int

    @property
    def n_clients(self) -> int:
        """Number of clients C."""
        return self.count

    @property
    def table_shape(self) -> tuple[int, int]:
        """Of the table that is changed, ``(n, d)``."""
        return self.left.shape[1], self.right.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.right.dtype

    def sum(self) -> Tensor:
        """Sum over the clients, ``(n, d)``: one GEMM."""
        return self.left.T @ self.right

    def dense(self) -> Tensor:
        """Materialise, ``(C, n, d)``."""
        table = self.left.new_zeros(self.n_clients, *self.table_shape)
        for term in self._ranks():
            table[self.owner[term]] += self.left[term, :, None] * self.right[term, None, :]
        return table

    def finite(self) -> Tensor:
        """Which clients' changes hold no NaN or infinity, ``(C,)`` bool."""
        # A sum is not finite if any summand is not: one pass, no boolean table.
        term = self.left.sum(1) + self.right.sum(1)
        broken = torch.zeros(self.n_clients, dtype=torch.int64)
        return broken.index_add_(0, self.owner, (~term.isfinite()).long()) == 0

    def squared_norm(self) -> Tensor:
        """Squared Frobenius norm of each client's change, ``(C,)``, from its Gram matrices."""
        norm = self.left.new_zeros(self.n_clients)
        ranks = list(self._ranks())
        for a in ranks:
            for b in ranks:
                i, j = _same_owner(self.owner[a], self.owner[b])
                cross = (self.left[a[i]] * self.left[b[j]]).sum(1)
                norm.index_add_(
                    0, self.owner[a[i]], cross * (self.right[a[i]] * self.right[b[j]]).sum(1)
                )
        return norm

    def norm_bound(self) -> Tensor:
        """An upper bound of each client's Frobenius norm, ``(C,)``: one pass, no Gram matrix."""
        term = torch.linalg.vector_norm(self.left, dim=1) * torch.linalg.vector_norm(
            self.right, dim=1
        )
        return term.new_zeros(self.n_clients).index_add_(0, self.owner, term)

    def scaled(self, factor: Tensor) -> FactoredRows:
        """Multiply each client's change by ``factor``, ``(C,)``."""
        right = self.right * factor[self.owner, None]
        return FactoredRows(self.owner, self.left, right, self.n_clients)

    def take(self, index: Tensor) -> FactoredRows:
        """Changes of the clients at the positions ``index``, ascending ``(K,)`` int64."""
        place = torch.full((self.n_clients,), -1)
        place[index] = torch.arange(index.numel())
        keep = place[self.owner] >= 0
        owner = place[self.owner[keep]]
        return FactoredRows(owner, self.left[keep], self.right[keep], index.numel())

    def concatenate(self, other: FactoredRows) -> FactoredRows:
        """Changes of both groups of clients, one after the other."""
        owner = torch.cat([self.owner, other.owner + self.n_clients])
        left, right = torch.cat([self.left, other.left]), torch.cat([self.right, other.right])
        return FactoredRows(owner, left, right, self.n_clients + other.n_clients)

    def touched(self) -> Tensor:
        """Number of rows that each client changed, ``(C,)`` int64."""
        return self._used().view(torch.uint8).sum(1, dtype=torch.int32).to(torch.int64)

    def wire(self) -> TouchedRows:
        """The form that travels: row numbers and values of the rows with a factor."""
        used = self._used()
        client, row = used.nonzero(as_tuple=True)
        values = self.left.new_zeros(row.numel(), self.right.shape[1])
        for term in self._ranks():
            place = torch.full((self.n_clients,), -1)
            place[self.owner[term]] = term
            k = place[client]
            factor = torch.where(k >= 0, self.left[k, row], 0.0)
            values += factor[:, None] * self.right[k]
        return TouchedRows(Ragged.from_pairs(client, row, self.n_clients), values, used.shape[1])

    def _used(self) -> Tensor:
        """Which rows each client changed, ``(C, n)`` bool."""
        changed = self.left.to(torch.bool)
        used = torch.zeros(self.n_clients, self.left.shape[1], dtype=torch.bool)
        for term in self._ranks():
            used[self.owner[term]] |= changed[term]
        return used

    def _ranks(self) -> list[Tensor]:
        """Terms grouped so that no group holds two of one client: first terms, then second ones."""
        order = torch.argsort(self.owner, stable=True)
        counts = torch.bincount(self.owner, minlength=self.n_clients)
        start = torch.cumsum(counts, 0) - counts
        rank = torch.arange(order.numel()) - start[self.owner[order]]
        return [order[rank == r] for r in range(int(counts.max()) if order.numel() else 0)]


@dataclass(frozen=True)
class TouchedRows(Rows):
    """Changes as row numbers and values, the form that travels.

    Attributes:
        index: row numbers, C rows of ascending int64.
        values: ``(nnz, d)``, aligned with ``index.values``.
        n_rows: n.
    """

    index: Ragged
    values: Tensor
    n_rows: int

    @property
    def n_clients(self) -> int:
        """Number of clients C."""
        return len(self.index)

    @property
    def table_shape(self) -> tuple[int, int]:
        """Of the table that is changed, ``(n, d)``."""
        return self.n_rows, self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.values.dtype

    def sum(self) -> Tensor:
        """Sum over the clients, ``(n, d)``."""
        table = self.values.new_zeros(self.n_rows, self.values.shape[1])
        return table.index_add_(0, self.index.values, self.values)

    def dense(self) -> Tensor:
        """Materialise, ``(C, n, d)``."""
        table = self.values.new_zeros(self.n_clients, self.n_rows, self.values.shape[1])
        table[self.index.rows, self.index.values] = self.values
        return table

    def finite(self) -> Tensor:
        """Which clients' changes hold no NaN or infinity, ``(C,)`` bool."""
        broken = torch.zeros(self.n_clients, dtype=torch.int64)
        bad = (~self.values.sum(1).isfinite()).long()
        return broken.index_add_(0, self.index.rows, bad) == 0

    def squared_norm(self) -> Tensor:
        """Squared Frobenius norm of each client's change, ``(C,)``."""
        norm = self.values.new_zeros(self.n_clients)
        return norm.index_add_(0, self.index.rows, self.values.square().sum(1))

    def scaled(self, factor: Tensor) -> TouchedRows:
        """Multiply each client's change by ``factor``, ``(C,)``."""
        return TouchedRows(self.index, self.values * factor[self.index.rows, None], self.n_rows)

    def take(self, index: Tensor) -> TouchedRows:
        """Changes of the clients at the positions ``index``, ``(K,)`` int64."""
        places = Ragged(torch.arange(self.index.values.numel()), self.index.offsets).take(index)
        return TouchedRows(self.index.take(index), self.values[places.values], self.n_rows)

    def concatenate(self, other: TouchedRows) -> TouchedRows:
        """Changes of both groups of clients, one after the other."""
        values = torch.cat([self.values, other.values])
        return TouchedRows(self.index.concatenate(other.index), values, self.n_rows)

    def touched(self) -> Tensor:
        """Number of rows that each client changed, ``(C,)`` int64."""
        return self.index.lengths

    def wire(self) -> TouchedRows:
        """Itself."""
        return self


@dataclass(frozen=True)
class DenseRows(Rows):
    """Changes of all rows, so that nobody sees which ones the client trained on.

    Holds C whole tables: run clients in chunks.

    Attributes:
        values: ``(C, n, d)``.

    Example:
        >>> rows = DenseRows(torch.ones(2, 3, 4))
        >>> rows.sum()[0].tolist(), rows.touched().tolist()
        ([2.0, 2.0, 2.0, 2.0], [3, 3])
    """

    values: Tensor

    @property
    def n_clients(self) -> int:
        """Number of clients C."""
        return self.values.shape[0]

    @property
    def n_rows(self) -> int:
        """Number of rows n of the table."""
        return self.values.shape[1]

    @property
    def table_shape(self) -> tuple[int, int]:
        """Of the table that is changed, ``(n, d)``."""
        return self.values.shape[1], self.values.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.values.dtype

    def sum(self) -> Tensor:
        """Sum over the clients, ``(n, d)``; of one client no copy."""
        return self.values[0] if self.n_clients == 1 else self.values.sum(0)

    def dense(self) -> Tensor:
        """Its values, ``(C, n, d)``."""
        return self.values

    def finite(self) -> Tensor:
        """Which clients' changes hold no NaN or infinity, ``(C,)`` bool."""
        return self.values.flatten(1).sum(1).isfinite()

    def squared_norm(self) -> Tensor:
        """Squared Frobenius norm of each client's change, ``(C,)``."""
        return self.values.flatten(1).square().sum(1)

    def scaled(self, factor: Tensor) -> DenseRows:
        """Multiply each client's change by ``factor``, ``(C,)``."""
        return DenseRows(self.values * factor[:, None, None])

    def take(self, index: Tensor) -> DenseRows:
        """Changes of the clients at the positions ``index``, ``(K,)`` int64."""
        return DenseRows(self.values[index])

    def concatenate(self, other: DenseRows) -> DenseRows:
        """Changes of both groups of clients, one after the other."""
        return DenseRows(torch.cat([self.values, other.values]))

    def nbytes(self) -> Tensor:
        """Bytes of each client's table on the wire, ``(C,)`` int64: no row numbers."""
        return self.touched() * (self.width * self.element_size)

    def touched(self) -> Tensor:
        """Number of rows sent, ``(C,)`` int64: all of them."""
        return torch.full((self.n_clients,), self.n_rows)

    def wire(self) -> DenseRows:
        """Itself: it travels without row numbers."""
        return self


def _same_owner(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Positions ``(i, j)`` with ``a[i] == b[j]``; both hold each owner at most once, ascending."""
    j = torch.searchsorted(b, a)
    match = (j < b.numel()) & (b[j.clamp_max(max(b.numel() - 1, 0))] == a)
    return match.nonzero().flatten(), j[match]
