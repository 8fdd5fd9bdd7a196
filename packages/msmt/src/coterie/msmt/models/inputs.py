"""What the networks see of a sample: an embedding of each field, end to end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.msmt.data.schema import Schema
from coterie.msmt.models.base import Batch

SPARSE_FROM = 50_000
"""Ids from which on the table of a field is large. With a batch of 2048 and embeddings of 8 to 128,
a step of Adam is as fast by either rule at about so many; with 1,000,000 it is 7 to 40 times as
fast by the rule of large tables."""


class Inputs(nn.Module):
    """Embeddings of a sample's fields.

    x = [E_1[c_1]; …; E_F[c_F]; W numbers + b], the layout of MTReclib: an embedding of each
    categorical field, and one of all numerical fields together. There may be no categorical, or
    no numerical fields.

    The gradient of a large table, of `SPARSE_FROM` ids or more, names the rows that a batch looks
    up, and a step moves these alone: with Adam or weight decay another rule than that of smaller
    tables (`coterie.core.local_training.row_optimizer.RowOptimizer`).

    Args:
        schema: form of the samples.
        width: d, numbers in an embedding.

    Attributes:
        n_features: D, length of x.
        tables: F embeddings ``(vocabularies[f], d)``.
        numbers: linear layer ``(P -> d)``; None where P = 0.

    Raises:
        UserError: the samples have no fields at all.

    Example:
        >>> inputs = Inputs(Schema(("ctr",), ("NL",), (10, 4), 3), 8)
        >>> batch = {"ids": torch.zeros(5, 2, dtype=torch.uint16), "numbers": torch.ones(5, 3)}
        >>> inputs(batch).shape
        torch.Size([5, 24])
    """

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__()
        if not schema.n_inputs:
            raise UserError("the samples have no fields: give categorical or numerical ones")
        self.n_features = schema.n_inputs * width
        sizes = schema.vocabularies
        tables = [nn.Embedding(size, width, sparse=size >= SPARSE_FROM) for size in sizes]
        for table in tables:
            nn.init.xavier_uniform_(table.weight)
        self.tables = nn.ModuleList(tables)
        self.numbers = nn.Linear(schema.n_numbers, width) if schema.n_numbers else None

    def forward(self, batch: Batch) -> Tensor:
        """Embed the fields of samples, ``(B, D)``; ids may be of any integer dtype."""
        ids = batch["ids"].long()
        found = [table(column) for table, column in zip(self.tables, ids.unbind(1), strict=True)]
        if self.numbers is not None:
            found.append(self.numbers(batch["numbers"].to(self.numbers.weight.dtype)))
        return torch.cat(found, dim=1)


class ScenarioEmbedding(nn.Embedding):
    """An embedding ``(S, d)`` of the samples' scenarios, ``width`` is d."""

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__(schema.n_scenarios, width)
        nn.init.xavier_uniform_(self.weight)
