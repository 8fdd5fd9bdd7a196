"""Mini-batches of rows: which rows a step sees, and what is dropped and hidden in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.assisted.aae.cells import Cells
from coterie.assisted.aae.inputs import Inputs
from coterie.assisted.aae.pattern import Pattern
from coterie.assisted.aae.row_shuffle import RowShuffle
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Batch:
    """What one step sees.

    Attributes:
        inputs: cells of the own ratings.
        ratings: their values ``(n_in,)``, 0 where hidden.
        sides: features ``(B, d)`` by name.
        keep: ``(B, code)`` what the code is multiplied with: 0 where dropped, else 1 / (1 - rate);
            None = no dropout.
        targets: cells of the targets.
        values: their values ``(n,)``.
        counted: ``(n,)`` of the values' dtype, 0 for a cell that is left out of the loss; None =
            all count.
    """

    inputs: Cells
    ratings: Tensor
    sides: dict[str, Tensor]
    keep: Tensor | None
    targets: Cells
    values: Tensor
    counted: Tensor | None


@dataclass(frozen=True)
class Draws:
    """What is drawn anew in each step.

    Attributes:
        code: width of the code.
        dropout: share of the code that is dropped.
        input_masking: share of the input's cells that is hidden.
        leave_out_visible: whether targets that are visible in the input are left out.
    """

    code: int
    dropout: float
    input_masking: float = 0.0
    leave_out_visible: bool = False


class RowBatches:
    """Shuffled mini-batches of the rows that have a target, see `RowShuffle`.

    Args:
        inputs: of m rows.
        pattern: of the targets, m rows.
        values: of the targets, ``(nnz,)``.
        size: rows a batch; the last of an epoch may be smaller.
        draws: what is drawn in each step.
        key: of all draws.

    Attributes:
        rows: which each batch has.
        per_epoch: number of batches in an epoch.
    """

    def __init__(
        self, inputs: Inputs, pattern: Pattern, values: Tensor, size: int, draws: Draws, key: Key
    ) -> None:
        self._inputs, self._pattern, self._values = inputs, pattern, values
        self._draws, self._key = draws, key
        self.rows = RowShuffle(pattern.columns.lengths, size, key)
        self.per_epoch = self.rows.per_epoch

    def __call__(self, number: int) -> Batch:
        """Make batch ``number``; the same one whenever it is asked for."""
        rows, draws = self.rows(number), self._draws
        key = self._key.fold("step", number)
        inputs, place = self._inputs.pattern.cells(rows)
        ratings = self._inputs.values.index_select(0, place)
        dtype = ratings.dtype
        seen: Tensor | None = None
        if draws.input_masking:
            seen = key.fold("masking").uniform(len(ratings)) >= draws.input_masking
            ratings = ratings * seen
        targets, place = self._pattern.cells(rows)
        keep: Tensor | None = None
        if draws.dropout:
            kept = key.fold("dropout").uniform(len(rows), draws.code) >= draws.dropout
            keep = kept.to(dtype).div_(1.0 - draws.dropout)
        counted: Tensor | None = None
        if draws.leave_out_visible:
            counted = self._invisible(inputs, seen, targets).to(dtype)
        sides = {n: features.index_select(0, rows) for n, features in self._inputs.sides.items()}
        values = self._values.index_select(0, place)
        return Batch(inputs, ratings, sides, keep, targets, values, counted)

    def _invisible(self, inputs: Cells, seen: Tensor | None, targets: Cells) -> Tensor:
        """Which targets the input does not show, ``(n,)`` bool."""
        places = self._inputs.places
        if places is None:
            raise ValueError("to leave out visible targets, the inputs must say their places")
        column, row = places.index_select(0, inputs.column), inputs.row
        if seen is not None:
            column, row = column[seen], row[seen]
        shown = torch.zeros((len(targets.start) - 1) * targets.n_columns, dtype=torch.bool)
        shown[row.long() * targets.n_columns + column] = True
        return ~shown[targets.row.long() * targets.n_columns + targets.column]
