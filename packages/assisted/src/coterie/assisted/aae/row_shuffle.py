"""Which rows a step sees."""

from __future__ import annotations

from torch import Tensor

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
