"""What an organisation learns on its own cells."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from coterie.assisted.aae.training import Trained
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.row_optimizer import Params
from coterie.core.tensors.keys import Key


class Model(ABC):
    """A model of one organisation's cells; it keeps nothing that it learns."""

    @abstractmethod
    def begin(self, key: Key) -> Trained:
        """Give the model before the first round."""

    @abstractmethod
    def train(self, now: Trained, key: Key) -> Trained:
        """Train for a round, on the cells to train on."""

    @abstractmethod
    def predict(self, params: Params, cells: Cells) -> Tensor:
        """Give ratings, or logits of positive ones, ``(n,)``, at cells of the same matrix."""
