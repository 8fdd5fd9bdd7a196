"""Base models: what is predicted before the first round, and without any training at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.assisted.deviations import label_deviations, rating_deviations
from coterie.assisted.objective import Objective
from coterie.core.data.interactions.alignment import Alignment
from coterie.core.data.interactions.cells import Cells

Start = Literal["mean", "logit", "smoothed", "bias"]


@dataclass(frozen=True)
class Base:
    """F⁰ of every cell: that of its column, and what its row deviates from it.

    Attributes:
        column: ``(n_columns,)``.
        row: ``(m,)``; None where all rows are taken alike.
    """

    column: Tensor
    row: Tensor | None = None

    def at(self, cells: Cells) -> Tensor:
        """F⁰ at some cells, ``(n,)``."""
        found = self.column[cells.columns.values]
        return found if self.row is None else found + self.row[cells.rows]


def base_model(cells: Cells, objective: Objective, start: Start, align: Alignment = "user") -> Base:
    """Fit F⁰ to an organisation's cells: F⁰(R) = E(R) of every column (section 3.3).

    Of ratings that is the mean of the column. Of implicit feedback the share of positives among the
    rows that have a cell at all: as it is where ``start`` is "mean" (the public code, where the
    share is taken for its own logit), its logit, or the logit of (s + 1) / (n + 2), a column's
    share of positives among its own n cells. "bias" adds what a row deviates, see
    `coterie.assisted.deviations`; of ratings all others are the same.

    Args:
        cells: with ratings or labels.
        objective: says which.
        start: which base model.
        align: what rows are.

    Example:
        >>> from coterie.assisted.objective import Squared
        >>> row, column = torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1])
        >>> cells = Cells.from_pairs(row, column, torch.tensor([5.0, 3.0, 2.0]), 2, 3)
        >>> base_model(cells, Squared(), "mean").column.tolist()
        [4.0, 2.0, 3.0]
    """
    if start == "bias":
        if objective.is_rating:
            row, column = rating_deviations(cells, align)
        else:
            row, column = label_deviations(cells)
        return Base(column, row)
    if objective.is_rating:
        return Base(column_mean(cells))
    if start == "smoothed":
        return Base(smoothed_rate(cells).logit())
    active = (cells.columns.lengths > 0).sum().clamp_min(1)
    share = _sums(cells) / active
    if start == "mean":
        return Base(share)
    half = 0.5 / active
    return Base(share.clamp(half, 1.0 - half).logit())


def constant(cells: Cells, objective: Objective) -> Tensor:
    """Score all cells alike, ``()``: by the mean rating, or the logit of (s + 1) / (n + 2)."""
    if objective.is_rating:
        return cells.values.mean()
    return ((cells.values.sum() + 1.0) / (len(cells) + 2.0)).logit()


def column_mean(cells: Cells) -> Tensor:
    """Mean of every column, ``(n_columns,)``; of an empty one the mean of the others' means."""
    count = _counts(cells)
    mean = _sums(cells) / count.clamp_min(1)
    known = count > 0
    return torch.where(known, mean, mean[known].mean() if bool(known.any()) else 0.0)


def smoothed_rate(cells: Cells) -> Tensor:
    """Share of positives of every column, (s + 1) / (n + 2), ``(n_columns,)``.

    It needs no peer: what a column's own cells say, between 0 and 1.
    """
    return (_sums(cells) + 1.0) / (_counts(cells) + 2.0)


def _sums(cells: Cells) -> Tensor:
    total = cells.values.new_zeros(cells.n_columns)
    return total.index_add_(0, cells.columns.values, cells.values)


def _counts(cells: Cells) -> Tensor:
    return torch.bincount(cells.columns.values, minlength=cells.n_columns)
