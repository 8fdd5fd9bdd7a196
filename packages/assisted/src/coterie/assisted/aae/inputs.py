"""What an organisation's autoencoder sees of each row: its own ratings, and side information."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from coterie.assisted.aae.pattern import Pattern
from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class Inputs:
    """Inputs of m rows.

    Attributes:
        columns: the columns that each row has rated, integers in [0, n_columns), each at most once
            a row.
        values: ``(nnz,)`` the ratings, as ``columns.values``.
        n_columns: columns of the organisation's own ratings.
        sides: dense features ``(m, d)`` of each kind of side information, by name.
        places: ``(n_columns,)`` int64, which column of the targets each own column is; needed only
            by plans that leave visible targets out.

    Raises:
        ValueError: sizes do not fit together, or a column is out of range.

    Example:
        >>> import torch
        >>> inputs = Inputs(Ragged.from_lists([[0, 2], []]), torch.tensor([5.0, 3.0]), 3)
        >>> len(inputs)
        2
    """

    columns: Ragged
    values: Tensor
    n_columns: int
    sides: Mapping[str, Tensor] = field(default_factory=dict)
    places: Tensor | None = None

    def __post_init__(self) -> None:
        if self.values.shape != self.columns.values.shape:
            raise ValueError("a rating is needed for each cell of the inputs")
        for name, features in self.sides.items():
            if features.dim() != 2 or len(features) != len(self.columns):
                raise ValueError(f"side information '{name}' must be ({len(self.columns)}, d)")
        if self.places is not None and self.places.shape != (self.n_columns,):
            raise ValueError(f"places must be given for all {self.n_columns} columns")
        _ = self.pattern

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def pattern(self) -> Pattern:
        """Where the ratings are."""
        return Pattern(self.columns, self.n_columns)
