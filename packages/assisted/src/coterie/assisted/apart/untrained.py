"""What needs no training: what columns say on average, and how rows and columns deviate."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.assisted.aae.training import Trained
from coterie.assisted.apart.model import Model
from coterie.assisted.base import Base, Start, base_model
from coterie.assisted.learner import Learner
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.tensors.keys import Key


class Untrained(Model):
    """A base model, by itself; there is one round.

    Args:
        learner: of the organisation.
        start: which one.
    """

    def __init__(self, learner: Learner, start: Start) -> None:
        self._learner, self._start = learner, start

    def begin(self, key: Key) -> Trained:
        """Fit it."""
        learner, cells = self._learner, self._learner.data.train
        base = base_model(cells, learner.objective, self._start, learner.settings.data.align)
        loss = learner.objective.loss(cells.values, base.at(cells)).mean()
        row = cells.values.new_zeros(cells.n_rows) if base.row is None else base.row
        params = {"column": base.column, "row": row}
        return Trained(params, loss, 0, RowState(torch.zeros(1, dtype=torch.int64), {}))

    def train(self, now: Trained, key: Key) -> Trained:
        """Leave it as it is."""
        return now

    def predict(self, params: Params, cells: Cells) -> Tensor:
        """Add up."""
        return Base(params["column"], params["row"]).at(cells)
