"""What crosses between the server of the method ``ensemble`` and a scenario, and what stays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.methods.kit.model_messages import (
    GlobalModel,
    ModelUpdate,
    OwnModel,
    QualityReport,
)
from coterie.core.methods.kit.uploads import measured
from coterie.core.protocol.messages import Down, Step, carries

UNMEASURED = -1.0
"""In place of an AUC that is not defined, as of one class or without samples."""


@dataclass(frozen=True)
class Course:
    """A network that a scenario trains by itself; each tensor ``(C, ...)``.

    Attributes:
        params: as they are now.
        optimizer: its state, where it remembers anything.
        statistics: running statistics.
        best: parameters and running statistics of the best round by own validation samples; the
            last one without any.
        score: ``(C,)`` float64 AUC of that, mean over tasks; `UNMEASURED` without any.
    """

    params: Params
    optimizer: RowState | None
    statistics: Params
    best: Params
    score: Tensor


@dataclass(frozen=True)
class EnsembleModel(OwnModel):
    """What a scenario keeps; ``optimizer`` and ``statistics`` are of FedAvg's network.

    Attributes:
        alone: its own network.
        partner: a second one of its own, in the control alone.
        trained: ``(C,)`` int64, number of the round that it trained in last.
        noted: running statistics that it had in FedAvg's best round.
        tuned: the fine-tuned network, parameters and running statistics; zeros before.
        is_tuned: ``(C,)`` bool.
    """

    alone: Course
    partner: Course | None
    trained: Tensor
    noted: Params
    tuned: Params
    is_tuned: Tensor


@dataclass(frozen=True)
class Starts(Down):
    """What the networks start with that nobody shares."""

    alone: Params = carries("first values of the scenario's own network, by name")
    partner: Params = carries("in the control: first values of its second network, by name")


@dataclass(frozen=True)
class RoundModel(GlobalModel):
    """The server's model w in a round of FedAvg."""

    number: int = carries("number of the round")
    best: int = carries("number of the best round so far; of the last one while none was measured")


@dataclass(frozen=True)
class TuneFrom(Down):
    """What is fine-tuned."""

    weights: Params = carries("the server's model of FedAvg's best round; none in the control")
    best: int = carries("number of that round")


@dataclass(frozen=True)
class Measure(Down):
    """What is measured beside a scenario's mix."""

    weights: Params = carries("the server's model w; none in the control")
    apart: bool = carries("whether both networks of the mix are measured by themselves too")


_MIXED = {"statistics", "alone", "partner", "tuned", "is_tuned"}


@dataclass(frozen=True)
class EnsembleReport(QualityReport):
    """How good w, the mix and its networks are on the scenarios' samples; stacked over C of them.

    The first parts of the keys are ``global``, ``personal`` (the mix), ``local`` (its own network)
    and ``tuned`` (the partner).
    """

    measures: dict[str, Tensor] = measured("quality of w, the mix and its two networks", _MIXED)
    weight: Tensor = measured("weight of its own network in the mix, mean over tasks", _MIXED)


RECEIVE = Step("receive", Starts, None)
UPDATE = Step("update", RoundModel, ModelUpdate)
TRAIN = Step("train", None, None)
TUNE = Step("tune", TuneFrom, None)
EVALUATE = Step("evaluate", Measure, EnsembleReport)
