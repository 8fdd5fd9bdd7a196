"""LightGCN: matrix factorisation whose vectors are smoothed over the graph of interactions."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.models.recommender import Pairs, Recommender, Triples, bce, bpr, table
from coterie.core.tensors.device import without_autocast
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


class LightGCN(Recommender):
    """LightGCN: E = 1/(K+1) Σ_k Â^k E⁰, s_ui = <e_u, e_i> (He et al., SIGIR 2020, Eqs. 4 and 6).

    Â = D^-1/2 A D^-1/2 over users and items, A from the given interactions alone: give those of
    training, or validation and test leak into the vectors. A node without an edge keeps
    e⁰/(K+1). The whole graph is propagated once a batch.

    Args:
        edges: one row a user number, the items of each; a repeated item is one edge.
        n_items: number of items.
        dim: length d of the vectors.
        key: for the start, N(0, sd²).
        layers: K; 0 is matrix factorisation.
        l2: λ of λ/2 · mean over the batch of the squared norms of its rows of E⁰ (not E).
        sd: standard deviation of the start, 0.1 in the public code.

    Example:
        >>> model = LightGCN(Ragged.from_lists([[0], [1]]), 2, 8, Key.from_seed(0))
        >>> model.item_scores(torch.tensor([1])).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        edges: Ragged,
        n_items: int,
        dim: int,
        key: Key,
        layers: int = 3,
        l2: float = 0.0,
        sd: float = 0.1,
    ) -> None:
        super().__init__(len(edges), n_items)
        with key.torch_rng():
            self.start = table(self.n_users + n_items, dim, sd)
        self.layers, self.l2 = layers, l2
        self._cached: tuple[object, Tensor] | None = None
        self.link(edges)

    def link(self, edges: Ragged) -> None:
        """Take another graph for the same users and items, as when more of it has become known.

        Raises:
            ValueError: the number of rows is not that of the users, or an item is out of range.
        """
        adjacency = normalised_adjacency(edges, self.n_items)
        if len(edges) != self.n_users:
            raise ValueError(f"edges of {len(edges)} users for a model of {self.n_users}")
        weight = self.start.weight
        adjacency = adjacency.to(device=weight.device, dtype=weight.dtype)
        self.register_buffer("adjacency", adjacency, persistent=False)
        self._cached = None

    def embed(self) -> tuple[Tensor, Tensor]:
        """Give E, split into users ``(n_users, d)`` and items ``(n_items, d)``.

        Without gradients the result is kept until the parameters change.
        """
        weight = self.start.weight
        if torch.is_grad_enabled():
            nodes = self._propagate()
        else:
            state = (weight._version, weight.data_ptr(), weight.dtype)
            if self._cached is None or self._cached[0] != state:
                self._cached = state, self._propagate()
            nodes = self._cached[1]
        return nodes[: self.n_users], nodes[self.n_users :]

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        users, items = self.embed()
        return (users[user] * items[item]).sum(-1)

    def item_scores(self, user: Tensor) -> Tensor:
        """Logits of all items: ``(C,)`` int64 -> ``(C, n_items)``, one matrix product."""
        users, items = self.embed()
        return users[user] @ items.T

    def loss(self, batch: Pairs | Triples) -> Tensor:
        """Mean loss of a batch plus the L2 penalty of its rows of E⁰, ``()``."""
        users, items = self.embed()
        user = users[batch.user]
        if isinstance(batch, Triples):
            difference = [(user * items[i]).sum(-1) for i in (batch.positive, batch.negative)]
            loss = bpr(*difference)
            numbers = [batch.positive, batch.negative]
        else:
            loss = bce((user * items[batch.item]).sum(-1), batch.label)
            numbers = [batch.item]
        if not self.l2:
            return loss
        rows = [batch.user, *(self.n_users + number for number in numbers)]
        squares = [self.start(row).square().sum(-1).mean() for row in rows]
        return loss + self.l2 / 2 * torch.stack(squares).sum()

    def _propagate(self) -> Tensor:
        layer = total = self.start.weight
        adjacency = self.get_buffer("adjacency")
        with without_autocast():  # torch has no sparse product in short formats
            for _ in range(self.layers):
                layer = _SymmetricProduct.apply(adjacency, layer)
                total = total + layer
        return total / (self.layers + 1)


def normalised_adjacency(edges: Ragged, n_items: int) -> Tensor:
    """Â = D^-1/2 A D^-1/2 of the graph of users and items, in sparse CSR form.

    Args:
        edges: one row a user number, the items of each.
        n_items: number of items.

    Returns:
        ``(n_users + n_items, n_users + n_items)`` float64; rows without an edge are empty.

    Raises:
        ValueError: an item number is not in 0..n_items - 1.
    """
    items = edges.values
    if items.numel() and not 0 <= int(items.min()) <= int(items.max()) < n_items:
        raise ValueError(f"an edge leads to an item outside 0..{n_items - 1}")
    n_users = len(edges)
    pair = torch.unique(edges.rows * n_items + items)
    user, item = pair // max(n_items, 1), pair % max(n_items, 1) + n_users
    row, column = torch.cat([user, item]), torch.cat([item, user])
    order = torch.argsort(row, stable=True)
    row, column = row[order], column[order]
    n_nodes = n_users + n_items
    degree = torch.bincount(row, minlength=n_nodes).double()
    values = (degree[row] * degree[column]).rsqrt()
    offsets = F.pad(degree.long().cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        size = (n_nodes, n_nodes)
        return torch.sparse_csr_tensor(offsets, column, values, size, check_invariants=True)


class _SymmetricProduct(torch.autograd.Function):
    """Product with a symmetric sparse matrix, which is its own transpose in the backward pass."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix @ grad
