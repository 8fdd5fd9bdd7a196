"""Messages and private state of the methods for any module."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.methods.kit.uploads import changed, counted, measured
from coterie.core.protocol.messages import Down, Private, Report, Step, Up, carries

_KEPT = {"own", "optimizer", "statistics"}
"""The private fields that training depends on: empty where the whole model is shared, its optimizer
has no memory, and it keeps no statistics."""
_OWN = {"personal", "rounds", "own", "statistics"}
"""Those that the quality of one's own model depends on."""


@dataclass(frozen=True)
class GlobalModel(Down):
    """The server's model w."""

    weights: Params = carries("the shared parameters of the server's model w, by name")


@dataclass(frozen=True)
class OwnStart(Down):
    """What a newcomer's model starts with."""

    own: Params = carries("first values of the parameters that are not shared, by name")


@dataclass(frozen=True)
class ModelUpdate(Up):
    """What a client's local training changed; stacked over C clients."""

    change: Params = changed("the model's parameters, w_k - w", _KEPT)  # each (C, ...)
    samples: Tensor = counted("number of samples n_k")  # (C,) int64
    loss: Tensor = measured("mean training loss", _KEPT)  # (C,)


@dataclass(frozen=True)
class QualityReport(Report):
    """How good models are on the clients' samples; NaN for a client without any.

    The keys are ``global/valid/loss`` and so on: the server's model or the client's ``personal``
    one, on ``valid`` or ``test`` samples, and the measure; those of ``samples`` are ``valid`` and
    ``test``. Each value is ``(C,)``.
    """

    measures: dict[str, Tensor] = measured("quality of the server's and its own model", _OWN)
    samples: dict[str, Tensor] = counted("numbers of samples to measure on")


@dataclass(frozen=True)
class OwnModel(Private):
    """What a client keeps.

    Attributes:
        personal: parameters of its own model, each ``(C, ...)``; empty where none is kept. Where a
            part of the model is shared, only that part.
        rounds: ``(C,)`` int64, rounds that it has trained in; before, its own model is the
            server's.
        own: the other parameters, which no one else has, each ``(C, ...)``.
        optimizer: its state, where it remembers anything from round to round.
        statistics: running statistics of its batch normalisation, each ``(C, ...)``.
    """

    personal: Params
    rounds: Tensor
    own: Params = field(default_factory=dict, kw_only=True)
    optimizer: RowState | None = field(default=None, kw_only=True)
    statistics: Params = field(default_factory=dict, kw_only=True)


RECEIVE = Step("receive", OwnStart, None)


UPDATE = Step("update", GlobalModel, ModelUpdate)


EVALUATE = Step("evaluate", GlobalModel, QualityReport)
