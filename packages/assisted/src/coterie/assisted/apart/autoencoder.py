"""An ordinary autoencoder: from an organisation's own columns to the same (AutoRec's way)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from coterie.assisted.aae.pattern import Pattern
from coterie.assisted.aae.prediction import predict
from coterie.assisted.aae.training import Plan, Trained, train
from coterie.assisted.apart.model import Model
from coterie.assisted.learner import Learner
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.row_optimizer import Params
from coterie.core.tensors.keys import Key


class Autoencoder(Model):
    """What the Assisted AutoEncoder is without assistance (section 3.2; Sedhain et al., 2015).

    It fits ratings themselves by the organisation's loss, one model over all rounds.

    Args:
        learner: of the organisation.
    """

    def __init__(self, learner: Learner) -> None:
        cells = learner.data.train
        self._plan, self._loss = learner.plan, learner.objective
        self._network, self._inputs = learner.network(cells.n_columns), learner.inputs(0)
        self._pattern, self._values = Pattern(cells.columns, cells.n_columns), cells.values

    def begin(self, key: Key) -> Trained:
        """Draw first parameters."""
        return self._train(replace(self._plan, epochs=0), key, None)

    def train(self, now: Trained, key: Key) -> Trained:
        """Train for some epochs more."""
        return self._train(self._plan, key, now)

    def predict(self, params: Params, cells: Cells) -> Tensor:
        """Decode the training cells of each row."""
        return predict(self._network, params, self._inputs, cells.columns)

    def _train(self, plan: Plan, key: Key, start: Trained | None) -> Trained:
        fitted = self._network, self._inputs, self._pattern, self._values
        return train(*fitted, plan, key, loss=self._loss, start=start)
