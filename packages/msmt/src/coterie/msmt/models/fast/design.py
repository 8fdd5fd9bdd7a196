"""The first layer's input as what is not yet multiplied by any table."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from coterie.msmt.models.fast.fields import Fields, Plan
from coterie.msmt.models.fast.projection import Part, projected


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
