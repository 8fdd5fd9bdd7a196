"""An organisation for itself: what it learns, from its own cells alone, and how good it is."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.assisted.data import OwnDomain
from coterie.assisted.learner import Learner
from coterie.assisted.own_models import Autoencoder, Factors, Model, Untrained
from coterie.assisted.prediction_messages import (
    KEEP_BEST,
    MEASURE,
    TRAIN,
    ApartState,
    Epochs,
    Loss,
    Predictions,
    Quality,
)
from coterie.assisted.quality import quality
from coterie.assisted.samples.model import BySamples, models_of, own_samples
from coterie.assisted.settings import Settings
from coterie.core.data.interactions.cells import Cells
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Form
from coterie.core.tensors.device import tiny_as_zero
from coterie.core.tensors.keys import Key


class Independent(Client[ApartState, OwnDomain]):
    """An organisation that predicts without peers.

    Args:
        settings: with the reading's choices resolved.
    """

    form: ClassVar[Form] = "list"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._known: dict[int, tuple[Learner, Model]] = {}

    def enrol(self, data: OwnDomain, key: Key) -> ApartState:
        """Begin with a model that has seen nothing, or that needs no training."""
        learned = self.own(data)[1].begin(self.drawing(key, 0))
        return ApartState(learned, learned.params)

    @MEASURE
    def measure(
        self, down: Predictions, mine: ApartState, data: OwnDomain, key: Key
    ) -> tuple[Quality, None]:
        """Measure the newest model on validation cells, or the best one on those of the test."""
        learner, model = self.of(mine, data)
        pooled = self.settings.evaluation == "pooled"
        if down.split == "test":
            return quality(learner, data.test, self.predicted(mine, data, data.test), pooled), None
        scores = model.predict(mine.learned.params, data.valid)
        return quality(learner, data.valid, scores, pooled), None

    @KEEP_BEST
    def keep_best(
        self, down: None, mine: ApartState, data: OwnDomain, key: Key
    ) -> tuple[None, ApartState]:
        """Keep the model of the round that was the best on validation so far."""
        return None, replace(mine, best=mine.learned.params)

    def predicted(self, mine: ApartState, data: OwnDomain, cells: Cells) -> Tensor:
        """Score some of the organisation's cells by the best model, ``(n,)``."""
        return self.of(mine, data)[1].predict(mine.best, cells)

    def drawing(self, key: Key, round_: int) -> Key:
        """By which a model is drawn (round 0), and trained: the organisation's own."""
        return key

    def of(self, mine: ApartState, data: OwnDomain) -> tuple[Learner, Model]:
        """What an organisation learns with, by all that it has."""
        return self.own(data)

    def own(self, data: OwnDomain) -> tuple[Learner, Model]:
        """What an organisation learns with, of its own cells alone; made once."""
        found = self._known.get(data.id)
        if found is None or found[0].data is not data:
            learner = Learner(self.settings, data)
            found = self._known[data.id] = learner, model_of(learner)
        return found


class Apart(Independent):
    """An organisation that trains without peers, of the methods alone and joint."""

    @TRAIN
    def train(
        self, down: Epochs, mine: ApartState, data: OwnDomain, key: Key
    ) -> tuple[Loss, ApartState]:
        """Train for some epochs more."""
        # Weight decay lets up to half a network's numbers fade; a step took ten times as long.
        with tiny_as_zero():
            learned = self.of(mine, data)[1].train(mine.learned, self.drawing(key, down.round))
        loss = Loss(learned.loss.clone(), torch.tensor(len(data.train)))
        return loss, replace(mine, learned=learned)


def model_of(learner: Learner) -> Model:
    """Make the model that the settings name, for one organisation."""
    match learner.settings.model.name:
        case "aae":
            return Autoencoder(learner)
        case "mf" | "mlp" | "ncf":
            return Factors(learner)
        case "base":
            return Untrained(learner, learner.settings.start or "smoothed")
        case "bias":
            return Untrained(learner, "bias")
        case "rate":  # of ratings, where its own loss is of these, the mean
            return Untrained(learner, "smoothed")
        case "autorec" | "gaussian" | "blend":
            samples = own_samples(learner)
            return BySamples(learner, samples, models_of(learner, samples))
