"""Changes of every row of a table, one table a client: what a noisy upload has to be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DenseRows:
    """Changes of all rows, so that nobody sees which ones the client trained on.

    Implements `coterie.core.tensors.rows.Rows`. Holds C whole tables: run clients in chunks.

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
    def width(self) -> int:
        """Row width d."""
        return self.values.shape[2]

    @property
    def element_size(self) -> int:
        """Bytes of one value."""
        return self.values.element_size()

    def sum(self) -> Tensor:
        """Sum over the clients, ``(n, d)``."""
        return self.values.sum(0)

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

    def touched(self) -> Tensor:
        """Number of rows sent, ``(C,)`` int64: all of them."""
        return torch.full((self.n_clients,), self.n_rows)

    def wire(self) -> DenseRows:
        """Itself: it travels without row numbers."""
        return self
