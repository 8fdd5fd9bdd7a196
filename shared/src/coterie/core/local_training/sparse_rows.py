"""Gradients that name the rows of large tables: what a step reads and writes of these.

A table of V rows, of which a batch looks up a few, has a gradient of zeros but for those.
``nn.Embedding(V, d, sparse=True)`` gives it as a sparse COO tensor. Stacked, that is one of shape
``(C, V, d)`` whose indices are client and row. In a step whose loss does not use the table at all,
its gradient is a dense one of zeros, as that of any parameter, and the step is a dense one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.tensors import tree


@dataclass(frozen=True)
class Touched:
    """The rows that a sparse gradient names, each once.

    Attributes:
        axes: how many first axes of a table name a row: client and row.
        clients: whose they are, ``(n,)`` int64, ascending.
        places: ``(n,)`` int64, counted through these axes.
        values: gradients, ``(n, ...)``.
    """

    axes: int
    clients: Tensor
    places: Tensor
    values: Tensor

    def of(self, table: Tensor) -> Tensor:
        """Copy the rows of a table ``(C, V, ...)``, to ``(n, ...)``."""
        return table.flatten(0, self.axes - 1).index_select(0, self.places)

    def put(self, table: Tensor, rows: Tensor, *, in_place: bool) -> Tensor:
        """Write rows ``(n, ...)`` into a table, or into a copy of it unless ``in_place``.

        Returns:
            The table; a copy too if it is not contiguous.
        """
        table = (
            table.contiguous() if in_place else table.clone(memory_format=torch.contiguous_format)
        )
        table.flatten(0, self.axes - 1).index_copy_(0, self.places, rows)
        return table


def touched(grad: Tensor) -> Touched:
    """List the rows of a sparse gradient ``(C, V, ...)``; what names one row is added up.

    Example:
        >>> grad = torch.tensor([[[0.0, 0.0], [2.0, 3.0]]]).to_sparse(2)
        >>> found = touched(grad)
        >>> found.places.tolist(), found.values.tolist()
        ([1], [[2.0, 3.0]])
    """
    grad = grad.coalesce()
    axes, indices = grad.sparse_dim(), grad.indices()
    places = indices[0]
    for size, index in zip(grad.shape[1:axes], indices[1:], strict=True):
        places = places * size + index
    return Touched(axes, indices[0], places, grad.values())


def norms(grad: Tensor) -> Tensor:
    """L2 norms of the clients' gradients, ``(C, V, ...) -> (C,)``."""
    rows = touched(grad)
    sizes = rows.clients.bincount(minlength=len(grad)).tolist()
    return torch.stack([torch.linalg.vector_norm(each) for each in rows.values.split(sizes)])


def scaled(grad: Tensor, factor: Tensor) -> Tensor:
    """Multiply the clients' gradients ``(C, V, ...)`` by a number each, ``(C,)``."""
    grad = grad.coalesce()
    values = grad.values()
    values = values * tree.columns(factor[grad.indices()[0]], values).to(values.dtype)
    return torch.sparse_coo_tensor(
        grad.indices(), values, grad.shape, is_coalesced=True, check_invariants=False
    )
