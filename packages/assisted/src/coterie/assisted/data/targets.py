"""Where the cells of all organisations lie in one matrix, as one organisation sees it.

An assisted autoencoder has an output for every column of every organisation (section 3.2): those
of organisation 0 first, then those of 1, and so on. Its rows are the organisation's own.
Organisations that have all rows in common see the same matrix, so in one process they share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.assisted.aae.pattern import Pattern
from coterie.core.data.interactions.cells import ascending
from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class Block:
    """Cells of one organisation in the rows of another.

    Attributes:
        id: number of the organisation whose cells they are.
        rows: ``(n,)`` row numbers of the organisation that looks at them.
        columns: ``(n,)`` numbers of the columns of the one that has them.
    """

    id: int
    rows: Tensor
    columns: Tensor


@dataclass(frozen=True)
class Matrix:
    """Cells of several organisations, sorted by row.

    Attributes:
        pattern: where they are.
        order: ``(n,)`` int32, for each cell of the pattern its place among the blocks end to end.
        slices: number of an organisation -> its part of the blocks end to end.
    """

    pattern: Pattern
    order: Tensor
    slices: dict[int, slice]

    def sorted(self, values: Mapping[int, Tensor]) -> Tensor:
        """Values of every organisation's cells in the order of the pattern, ``(n,)``."""
        return torch.cat([values[id_] for id_ in self.slices]).index_select(0, self.order)

    def parted(self, values: Tensor) -> dict[int, Tensor]:
        """Values in the order of the pattern, ``(…, n)``, by organisation."""
        back = values.index_select(-1, self._place)
        return {id_: back[..., part] for id_, part in self.slices.items()}

    @cached_property
    def _place(self) -> Tensor:
        """For each cell of the blocks its place in the pattern: to gather is half of to scatter."""
        places = torch.arange(len(self.order), dtype=torch.int32)
        return torch.empty_like(self.order).index_copy_(0, self.order.long(), places)


class Matrices:
    """Matrices that were made, to find them again: their making takes as long as an epoch."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Matrix] = {}

    def find(self, blocks: Sequence[Block], widths: dict[int, int], n_rows: int) -> Matrix:
        """Lay cells side by side.

        Args:
            blocks: one an organisation, by ascending number.
            widths: number of an organisation -> number of its columns, of all that there are.
            n_rows: number of rows.
        """
        key = (str(n_rows), str(sorted(widths.items())), *map(_digest, blocks))
        if key not in self._kept:
            self._kept[key] = _lay(blocks, widths, n_rows)
        return self._kept[key]


def _lay(blocks: Sequence[Block], widths: dict[int, int], n_rows: int) -> Matrix:
    first, begins = 0, {}
    for id_ in sorted(widths):
        begins[id_] = first
        first += widths[id_]
    none = torch.empty(0, dtype=torch.int64)  # if nobody asks
    rows = torch.cat([none, *(block.rows.long() for block in blocks)])
    columns = torch.cat([none, *(block.columns.long() + begins[block.id] for block in blocks)])
    order = ascending(rows * first + columns, n_rows * first)
    ends = torch.tensor([block.rows.numel() for block in blocks], dtype=torch.int64).cumsum(0)
    slices = {
        block.id: slice(end - block.rows.numel(), end)
        for block, end in zip(blocks, ends.tolist(), strict=True)
    }
    lengths = torch.bincount(rows, minlength=n_rows)
    pattern = Pattern(Ragged.from_lengths(columns[order], lengths), first)
    return Matrix(pattern, order.int(), slices)


def _digest(block: Block) -> str:
    found = hashlib.sha256(str(block.id).encode())
    for part in (block.rows, block.columns):
        found.update(part.cpu().int().contiguous().numpy().tobytes())
    return found.hexdigest()
