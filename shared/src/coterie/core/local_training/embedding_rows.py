"""Rows of embeddings: those that a gradient names, and the padding row, which gets none.

A table of V rows, of which a batch looks up a few, has a gradient of zeros but for those.
``nn.Embedding(V, d, sparse=True)`` gives it as a sparse COO tensor. Stacked, that is one of shape
``(C, V, d)`` whose indices are client and row. In a step whose loss does not use the table at all,
its gradient is a dense one of zeros, as that of any parameter, and the step is a dense one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


# Embeddings whose padding row gets no gradient, also where clients are stacked.
#
# Autograd through `torch.func.vmap` forgets ``padding_idx``. What torch does for one client is that
# a look-up of that row gives it no gradient; other uses of the table, as by an output layer that is
# tied to it, do.


class PaddedEmbedding(nn.Embedding):
    """A dense embedding with a padding row; outside of `torch.func` it is what it was."""

    def forward(self, input: Tensor) -> Tensor:
        """As `torch.nn.Embedding.forward`."""
        assert self.padding_idx is not None
        if not torch._C._functorch.is_batchedtensor(self.weight):
            return super().forward(input)
        rows = F.embedding(input, self.weight)
        padding = torch.eq(input, self.padding_idx).unsqueeze(-1)
        return torch.where(padding, rows.detach(), rows)


def keep_padding_rows(module: nn.Module) -> None:
    """Make the dense embeddings of a module keep their padding rows; it is changed.

    Example:
        >>> table = nn.Embedding(3, 1, padding_idx=0)
        >>> keep_padding_rows(table)
        >>> isinstance(table, PaddedEmbedding)
        True
    """
    for part in module.modules():
        if type(part) is nn.Embedding and part.padding_idx is not None and not part.sparse:
            part.__class__ = PaddedEmbedding
