"""What crosses the boundary between a client and the server in PAGE, and what stays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.agents.ddpg import Agents, Experience
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.fields import changed, counted, measured
from coterie.core.methods.kit.model_client import ModelUpdate, OwnModel
from coterie.core.protocol.expected import Count, Flag
from coterie.core.protocol.messages import Down, carries
from coterie.core.protocol.step import Step

_BEHIND = {"agents", "last", "accuracy", "stage"}  # private fields that a strategy depends on


@dataclass(frozen=True)
class Stage(Down):
    """Begin of a stage: the global model W(t)."""

    weights: Params = carries("global model W(t), parameters by name")
    server_utility: Tensor = carries(  # ()
        "u_CS of the last stage, for clients that share the objective; NaN before the first"
    )
    number: int = carries("t")


@dataclass(frozen=True)
class Move(ModelUpdate):
    """What a client did in a stage: its strategy g_i(t) = (α_i, η_i) and where it led."""

    change: Params = changed("the model's parameters, w_i - W", _BEHIND)  # each (C, ...)
    samples: Tensor = counted("number of samples n_i")  # (C,) int64
    loss: Tensor = measured("mean training loss", _BEHIND)  # (C,)
    local_loss: Tensor = measured(  # (C,) 0 for a client without samples
        "loss f_i of the trained model on samples held out, or else its training samples", _BEHIND
    )
    lr: Tensor = measured("learning rate η_i", _BEHIND)  # (C,)
    epochs: Tensor = measured("local epochs α_i", _BEHIND, Count())  # (C,) int64
    diverged: Tensor = measured(  # (C,) bool
        "whether the training diverged; such a model does not count", _BEHIND, Flag()
    )


@dataclass(frozen=True)
class ClientState(OwnModel):
    """What a client of PAGE keeps beside its model.

    Attributes:
        agents: its agent; None where nothing is left to choose.
        last: its last stage.
        accuracy: ``(C,)`` of its last model on its validation samples.
        stage: ``(C,)`` int64, number of its last stage.
    """

    agents: Agents | None
    last: Experience
    accuracy: Tensor
    stage: Tensor


UPDATE = Step("update", Stage, Move, diverged="diverged")
