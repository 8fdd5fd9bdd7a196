"""A batch's fields before any table is multiplied: numbers, one-hot ids, looked-up features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.msmt.models.fast.projection import Part, projected

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
        features=torch.cat([like.new_empty(0, ids.shape[0]), *features]),
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
    return like.new_zeros(n_rows, ids.shape[0]).scatter(0, rows.T, 1.0)


# The first layer's input as what is not yet multiplied by any table.


@dataclass(frozen=True)
class Design:
    """An input x = concat(E_1[c_1], …, W numbers + b), or its normalisation, of a batch.

    It is x = D m + constant, with a block of D for each block of x; those that are not projected
    are in m themselves.

    Attributes:
        m: ``(K, B)`` numbers, one-hot ids, features.
        tables: blocks of D^T, one below the other, of the parts that are projected, ``(c + k, d)``;
            the first row is the constant of the numbers' block, if there is one (c = 1).
        parts: of m, counted with the constant.
        constant: c, whether there is a constant.
    """

    m: Tensor
    tables: Tensor
    parts: tuple[Part, ...]
    constant: int

    @property
    def fixed(self) -> int:
        """First rows of m that are data: they need no gradient."""
        return len(self.tables) - self.constant

    def maps(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Turn linear maps of x into maps of m.

        Args:
            weight: ``(M, D, h)``, M maps ``x @ weight``.

        Returns:
            ``(M, h, K)``, and ``(M, h)`` or None for zeros: the maps are ``first @ m + second``,
            ``(M, h, B)``.
        """
        return self.split(projected(weight, self.tables, self.parts))

    def split(self, found: Tensor) -> tuple[Tensor, Tensor | None]:
        """Make of mapped tables ``(M, c + K, h)`` what `maps` gives."""
        if not self.constant:
            return found.mT, None
        bias, rows = found.split([1, len(self.m)], dim=1)
        return rows.mT, bias.squeeze(1)


def design_of(plan: Plan, fields: Fields) -> Design:
    """Make a design of a batch's fields, normalised or not."""
    linear = [len(fields.linear) + 1] if plan.linear else []
    sizes = [*linear, *(plan.vocabularies[f] for f in plan.small), *[plan.width] * len(plan.large)]
    blocks = [*plan.linear, *plan.small, *plan.large]
    parts = tuple(
        Part(block, end - size, end, block not in plan.large)
        for block, size, end in zip(blocks, sizes, accumulate(sizes), strict=True)
    )
    return Design(
        m=torch.cat([fields.numbers, fields.one_hot, fields.features]),
        tables=torch.cat([fields.constant, fields.linear, fields.table]),
        parts=parts,
        constant=len(fields.constant),
    )
