"""What crosses the boundary where nobody assists anybody: measurements."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.assisted.aae.training import Trained
from coterie.assisted.prediction_messages import Predictions, Quality
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.fields import counted, measured
from coterie.core.protocol.messages import Down, Private, Report, carries
from coterie.core.protocol.step import ListStep


@dataclass(frozen=True)
class Epochs(Down):
    """Go on training, for as many epochs as the settings say."""

    round: int = carries("t")


@dataclass(frozen=True)
class Loss(Report):
    """How well an organisation fits its own ratings."""

    loss: Tensor = measured("mean training loss L_k over the steps of the round", {"learned"})
    cells: Tensor = counted("number of its training cells")  # () int64


@dataclass(frozen=True)
class ApartState(Private):
    """What stays with an organisation.

    Attributes:
        learned: its model and the state of the optimizer.
        best: the model of the best round so far; what is tested.
    """

    learned: Trained
    best: Params


TRAIN = ListStep("train", Epochs, Loss)
KEEP_BEST = ListStep("keep_best", None, None)
MEASURE = ListStep("measure", Predictions, Quality)
