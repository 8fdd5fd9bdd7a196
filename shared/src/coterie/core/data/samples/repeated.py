"""Batches of clients that stand in a stack more than once."""

from __future__ import annotations

from torch import Tensor

from coterie.core.data.samples.samples import CountedBatches


class RepeatedBatches:
    """Batches of clients that come more than once, as to be trained with several rates at once.

    Args:
        batches: of N clients.
        who: ``(K,)`` int64, which of them each row is.
        epochs: ``(K,)`` int64 passes of each row.

    Attributes:
        per_epoch: ``(K,)`` int64.
        steps: ``(K,)`` int64.
    """

    def __init__(self, batches: CountedBatches, who: Tensor, epochs: Tensor) -> None:
        self._batches, self._who = batches, who
        self.per_epoch = batches.per_epoch[who]
        self.steps = epochs * self.per_epoch

    def __call__(self, number: int, rows: Tensor) -> dict[str, Tensor]:
        """Batch ``number`` of the rows, each field ``(K, B, ...)``."""
        return self._batches(number, self._who[rows])
