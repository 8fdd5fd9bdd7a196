"""Draws over the rows of a file too big to be shuffled: each row's is a hash of its number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.data.sources.csv_blocks import Block, CsvForm, csv_blocks
from coterie.core.tensors.keys import Key, unit

_BITS = 20  # of a hash, by which a table counts how many rows have it

Bools = npt.NDArray[np.bool_]


@dataclass
class Negatives:
    """Keeps all positives of a file, and as many negatives as are wanted.

    Those negatives are kept whose hashes are the smallest, so that the draw needs no second table;
    of the last few, with one hash, the first in the file.

    Attributes:
        column: the label, 0 or 1.
        key: of the draw.
        bound: hash below which negatives are kept.
        at_bound: how many negatives with that hash are kept.
        positives: number of positives in the file.
        negatives: number of negatives that are kept.
    """

    column: str
    key: Key
    bound: int
    at_bound: int
    positives: int
    negatives: int
    _taken: int = field(default=0, repr=False)

    @staticmethod
    def plan(path: Path, layout: CsvForm, column: str, ratio: int, key: Key) -> Negatives:
        """Read the labels of a file, and plan to keep ``ratio`` negatives a positive, if there are.

        Raises:
            UserError: as `coterie.core.data.sources.csv_blocks.csv_blocks`.
        """
        only = replace(layout, reads={column: layout.reads[column]})
        return _planned(csv_blocks(path, only), column, ratio, key)

    def keep(self, block: Block) -> Bools:
        """Which rows of a block are kept; the blocks of a file must come in their order."""
        if block.first_row == 0:
            self._taken = 0
        kept = block.numbers(self.column) == 1
        hashes = _hashes(self.key, block)
        at = np.flatnonzero(~kept & (hashes == self.bound))[: self.at_bound - self._taken]
        self._taken += len(at)
        kept |= hashes < self.bound
        kept[at] = True
        return kept


def part_of(block: Block, key: Key, valid: float, test: float) -> npt.NDArray[np.int64]:
    """Draw the part of every row of a block, `TRAIN`, `VALID` or `TEST`.

    Args:
        block: of a file.
        key: of the draws.
        valid: share of the validation rows.
        test: share of the test rows.
    """
    drawn = unit(key.bits(_numbers(block)), torch.float64).numpy()
    return np.where(drawn < test, TEST, np.where(drawn < test + valid, VALID, TRAIN))


def _planned(blocks: Iterable[Block], column: str, ratio: int, key: Key) -> Negatives:
    counts, positives = np.zeros(1 << _BITS, np.int64), 0
    for block in blocks:
        negative = block.numbers(column) != 1
        positives += int((~negative).sum())
        counts += np.bincount(_hashes(key, block)[negative], minlength=1 << _BITS)
    below = np.cumsum(counts)
    wanted = min(ratio * positives, int(below[-1]))
    bound = int(np.searchsorted(below, wanted))
    at_bound = wanted - int(below[bound] - counts[bound])
    return Negatives(column, key, bound, at_bound, positives, wanted)


def _hashes(key: Key, block: Block) -> npt.NDArray[np.int64]:
    """Hashes of a block's rows, `_BITS` bits each."""
    bits = key.bits(_numbers(block)).numpy().view(np.uint64)
    return (bits >> np.uint64(64 - _BITS)).astype(np.int64)


def _numbers(block: Block) -> torch.Tensor:
    return torch.arange(block.first_row, block.first_row + len(block), device="cpu")
