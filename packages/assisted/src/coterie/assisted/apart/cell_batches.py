"""Mini-batches of rows with all their cells, as `coterie.core.local_training.fit` takes them."""

from __future__ import annotations

from torch import Tensor

from coterie.assisted.aae.row_shuffle import RowShuffle
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.losses import Batch
from coterie.core.tensors.keys import Key


class CellBatches:
    """Batches of one client: some rows with all their cells.

    A batch has ``user`` ``(1, B)`` and, of each cell, ``(1, n)``, ``row`` (the position of its row
    in ``user``), ``item`` and ``rating``.

    Args:
        cells: to train on; rows are called users, columns items.
        size: rows a batch.
        key: of the shuffles.
        epochs: those that are done already; batches are counted on from there.
    """

    def __init__(self, cells: Cells, size: int, key: Key, epochs: int = 0) -> None:
        self._cells, self._rows = cells, RowShuffle(cells.columns.lengths, size, key)
        self.per_epoch = self._rows.per_epoch
        self._first = epochs * self.per_epoch

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` from 0."""
        user = self._rows(self._first + number)
        cells = self._cells.take(user)
        found = {"row": cells.rows, "item": cells.columns.values, "rating": cells.values}
        return {name: value[None] for name, value in {"user": user, **found}.items()}
