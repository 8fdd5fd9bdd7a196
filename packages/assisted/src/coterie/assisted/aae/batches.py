"""Mini-batches of rows: which rows a step sees, and what is dropped and hidden in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.assisted.aae.cells import Cells, Inputs, Pattern
from coterie.core.tensors.keys import Key


class RowShuffle:
    """Rows that have something to learn from, shuffled anew in every epoch, in batches.

    Rows with nothing are no part of any batch: they would teach nothing, and a batch of them would
    have no mean.

    Args:
        lengths: ``(m,)`` int64, how much each row has.
        size: rows a batch; the last of an epoch may be smaller.
        key: of the shuffles.

    Attributes:
        per_epoch: number of batches in an epoch.

    Example:
        >>> import torch
        >>> batches = RowShuffle(torch.tensor([2, 0, 1, 5]), 2, Key.from_seed(0))
        >>> sorted(torch.cat([batches(0), batches(1)]).tolist()), batches.per_epoch
        ([0, 2, 3], 2)
    """

    def __init__(self, lengths: Tensor, size: int, key: Key) -> None:
        self._size, self._key = size, key
        self._rows = lengths.nonzero().flatten()
        self.per_epoch = -(-len(self._rows) // size)
        self._shuffled = (-1, self._rows)

    def __call__(self, number: int) -> Tensor:
        """Rows of batch ``number`` (counted from 0 over all epochs), ``(B,)`` int64."""
        epoch, part = divmod(number, self.per_epoch)
        if self._shuffled[0] != epoch:
            bits = self._key.fold("epoch", epoch).bits(self._rows)
            self._shuffled = (epoch, self._rows[bits.argsort(stable=True)])
        return self._shuffled[1][part * self._size : (part + 1) * self._size]


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
        self._size, self._draws, self._key = size, draws, key
        self.rows = RowShuffle(pattern.columns.lengths, size, key)
        self.per_epoch = self.rows.per_epoch
        cells = (pattern.nnz + inputs.pattern.nnz) // max(self.per_epoch, 1)
        each = cells + pattern.n_columns + inputs.n_columns
        self._together = max(min(_CELLS // each, self.per_epoch), 1)
        self._made: tuple[tuple[int, int], list[Batch]] = ((-1, -1), [])

    def __call__(self, number: int) -> Batch:
        """Make batch ``number``; the same one whenever it is asked for.

        The batches around it are made with it.
        """
        epoch, part = divmod(number, self.per_epoch)
        group, within = divmod(part, self._together)
        if self._made[0] != (epoch, group):
            self._made = ((epoch, group), self._make(epoch, group))
        return self._made[1][within]

    def _make(self, epoch: int, group: int) -> list[Batch]:
        first, begin = group * self._together, epoch * self.per_epoch
        last = min(first + self._together, self.per_epoch)
        numbers = torch.arange(begin + first, begin + last)
        rows = torch.cat([self.rows(number) for number in numbers.tolist()])
        keys = self._key.fold("step", numbers)
        inputs = self._inputs.pattern.batches(rows, self._size)
        targets = self._pattern.batches(rows, self._size)
        sides = {
            name: features.index_select(0, rows).split(self._size)
            for name, features in self._inputs.sides.items()
        }
        keep = self._keep(keys)
        parts = zip(
            inputs.cells,
            inputs.take(self._inputs.values),
            targets.cells,
            targets.take(self._values),
            strict=True,
        )
        return [
            self._batch(
                Batch(
                    given,
                    ratings,
                    {name: features[at] for name, features in sides.items()},
                    None if keep is None else keep[at, : given.n_rows],
                    asked,
                    values,
                    None,
                ),
                Key(keys.state[at]),
            )
            for at, (given, ratings, asked, values) in enumerate(parts)
        ]

    def _keep(self, keys: Key) -> Tensor | None:
        """Draw what the codes of each of G batches are multiplied with, ``(G, size, code)``."""
        draws = self._draws
        if not draws.dropout:
            return None
        kept = spared(keys.fold("dropout"), (self._size, draws.code), draws.dropout)
        return kept.to(self._values.dtype).div_(1.0 - draws.dropout)

    def _batch(self, batch: Batch, key: Key) -> Batch:
        """Hide ratings, and leave out targets, where that is asked for."""
        draws, seen = self._draws, None
        if draws.input_masking:
            # In the order of rows, which is nobody's choice.
            drawn = spared(key.fold("masking"), (len(batch.ratings),), draws.input_masking)
            seen = drawn.index_select(0, batch.inputs.by_row)
            batch = replace(batch, ratings=batch.ratings * seen)
        if draws.leave_out_visible:
            counted = self._invisible(batch.inputs, seen, batch.targets)
            batch = replace(batch, counted=counted.to(batch.values.dtype))
        return batch

    def _invisible(self, inputs: Cells, seen: Tensor | None, targets: Cells) -> Tensor:
        """Which targets the input does not show, ``(n,)`` bool."""
        places = self._inputs.places
        if places is None:
            raise ValueError("to leave out visible targets, the inputs must say their places")
        column, row = places.index_select(0, inputs.column), inputs.row
        if seen is not None:
            column, row = column[seen], row[seen]
        shown = torch.zeros(targets.n_rows * targets.n_columns, dtype=torch.bool)
        shown[row.long() * targets.n_columns + column] = True
        return ~shown[targets.row.long() * targets.n_columns + targets.column]


def spared(key: Key, shape: tuple[int, ...], rate: float) -> Tensor:
    """Draw what is neither dropped nor hidden, bool; each with chance 1 - ``rate``.

    A number of a key has 64 bits and gives four draws, so the rate is rounded to 1/65,536.

    Args:
        key: one, or one for each of C draws.
        shape: of a draw; the first numbers of a longer draw are the same.
        rate: in [0, 1).

    Returns:
        ``(*shape)``, or ``(C, *shape)`` for C keys.
    """
    count, state = math.prod(shape), key.state
    bits = Key(state[..., None]).bits(torch.arange(-(-count // 4)))
    quarters = bits.view(torch.int16)[..., :count]
    return (quarters >= round(rate * 65_536) - 32_768).view(*state.shape, *shape)


_CELLS = 1 << 18
"""Cells and columns of the batches that are made together, 40 bytes each."""
