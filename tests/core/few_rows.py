"""Changes of a table's rows by a few clients, of whom any may have changed nothing."""

from __future__ import annotations

import torch

from coterie.core.tensors.rows import DenseRows, FactoredRows, Rows
from coterie.core.tensors.sparse_rows import SparseFactoredRows

N, D = 5, 3
# Who has each term, of how many clients: the first, the last or those between may have none.
GROUPS = [([0, 1, 2, 0], 3), ([0], 3), ([2], 3), ([3, 1, 1], 5), ([], 2), ([1], 2), ([0], 1)]


def factored(owners: list[int], clients: int, seed: int = 0) -> FactoredRows:
    draw = torch.Generator().manual_seed(seed)
    left = torch.randn(len(owners), N, generator=draw, dtype=torch.float64)
    left[:, seed % N] = 0  # a row that nobody touched
    right = torch.randn(len(owners), D, generator=draw, dtype=torch.float64)
    return FactoredRows(torch.tensor(owners, dtype=torch.int64), left, right, clients)


def sparse(rows: FactoredRows) -> SparseFactoredRows:
    """The same, every term with two entries of a half for what it does, in another order."""
    n_terms, order = len(rows.owner), torch.arange(N).flip(0)
    left = (rows.left / 2).flip(1).repeat(1, 2)
    index = order.repeat(2 * n_terms).to(torch.int32)
    offsets = 2 * N * torch.arange(n_terms + 1)
    flat = (rows.owner, index, left.flatten(), offsets, rows.right)
    return SparseFactoredRows(*flat, rows.count, N)


def by_hand(rows: FactoredRows) -> torch.Tensor:
    """The tables of all clients, term by term."""
    table = torch.zeros(rows.count, N, D, dtype=torch.float64)
    for owner, left, right in zip(rows.owner.tolist(), rows.left, rows.right, strict=True):
        table[owner] += torch.outer(left, right)
    return table


def forms(rows: FactoredRows) -> list[Rows]:
    return [rows, rows.wire(), DenseRows(rows.dense()), sparse(rows)]
