"""A batch's fields before any table is multiplied: numbers, one-hot ids, looked-up features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


class Embeddings(Protocol):
    """Tables of F categorical fields, and a linear map of all numbers."""

    tables: nn.ModuleList
    numbers: nn.Linear | None


@dataclass(frozen=True)
class Plan:
    """Which parts of x = concat(E_1[c_1], …, W numbers + b) are projected.

    A field is projected if it has at most d ids, for then one-hot ids have fewer rows than the
    field's features; and the numbers if they are at most d. The others, a field of users for
    instance, are looked up; their tables have dense or sparse gradients, as they say themselves.

    Attributes:
        vocabularies: ``(F,)`` how many ids each field has.
        n_numbers: P.
        width: d.
    """

    vocabularies: Sequence[int]
    n_numbers: int
    width: int

    @property
    def small(self) -> list[int]:
        """Fields that are projected."""
        return [f for f, size in enumerate(self.vocabularies) if size <= self.width]

    @property
    def linear(self) -> list[int]:
        """The numbers' block, if there are numbers and they are projected."""
        return [len(self.vocabularies)] if 0 < self.n_numbers <= self.width else []

    @property
    def owner(self) -> list[int]:
        """Of each id of a small field the field's place in `small`."""
        return [place for place, f in enumerate(self.small) for _ in range(self.vocabularies[f])]

    @property
    def large(self) -> list[int]:
        """Blocks that are looked up or, the numbers, computed."""
        fields = [f for f, size in enumerate(self.vocabularies) if size > self.width]
        return fields + [len(self.vocabularies)] * (self.n_numbers > self.width)


@dataclass(frozen=True)
class Fields:
    """The blocks of x of a batch: those of one-hot ids, of the numbers, and of features.

    Any of the three may have no rows.

    Attributes:
        one_hot: ``(C, B)`` the ids of all fields that are projected.
        table: ``(C, d)`` their embeddings.
        numbers: ``(P, B)``.
        linear: ``(P, d)``, the map of the numbers.
        constant: ``(1, d)``, added to the map; ``(0, d)`` without numbers.
        features: ``(n d, B)`` of the n other blocks.
    """

    one_hot: Tensor
    table: Tensor
    numbers: Tensor
    linear: Tensor
    constant: Tensor
    features: Tensor


def fields_of(plan: Plan, embeddings: Embeddings, batch: Batch) -> Fields:
    """Cut a batch into its fields.

    Args:
        plan: which are projected.
        embeddings: of the fields.
        batch: ``ids`` ``(B, F)`` of any integer dtype and ``numbers`` ``(B, P)`` of any float one.

    Raises:
        RuntimeError: an id is not in its field's vocabulary.
    """
    ids = batch["ids"].long()
    tables: list[Any] = list(embeddings.tables)
    weights = [table.weight for table in tables]
    maps = embeddings.numbers
    like = weights[0] if maps is None else maps.weight
    numbers = batch["numbers"].to(like.dtype).T
    nothing = like.new_empty(0, plan.width)
    features = [
        nn.functional.embedding(ids[:, f], weights[f], sparse=tables[f].sparse).T
        for f in plan.large
        if f < len(tables)
    ]
    linear, constant = nothing, nothing
    if maps is not None and plan.linear:
        linear, constant = maps.weight.T, maps.bias[None]
    elif maps is not None:
        features.append(torch.addmm(maps.bias[:, None], maps.weight, numbers))
        numbers = numbers[:0]
    return Fields(
        one_hot=_one_hot(ids, plan, like),
        table=torch.cat([nothing, *(weights[f] for f in plan.small)]),
        numbers=numbers,
        linear=linear,
        constant=constant,
        features=torch.cat([like.new_empty(0, len(ids)), *features]),
    )


def _one_hot(ids: Tensor, plan: Plan, like: Tensor) -> Tensor:
    """Make of ids ``(B, F)`` the rows ``(C, B)`` of small fields, in the dtype of ``like``."""
    small = torch.tensor(plan.small, dtype=torch.int64, device=ids.device)
    vocabularies = torch.tensor(plan.vocabularies, dtype=torch.int64, device=ids.device)
    ids, sizes = ids.index_select(1, small), vocabularies.index_select(0, small)
    rows = ids + (sizes.cumsum(0) - sizes)
    n_rows = len(plan.owner)
    # Without this an unknown id would be one of the next field.
    rows = torch.where((ids >= 0) & (ids < sizes), rows, n_rows)
    return like.new_zeros(n_rows, len(ids)).scatter(0, rows.T, 1.0)
