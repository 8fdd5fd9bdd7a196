"""What crosses the boundary between a client and the server in PAGE, and what stays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.agents.ddpg import Agents, Experience
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_messages import ModelUpdate, OwnModel
from coterie.core.methods.kit.uploads import changed, counted, measured
from coterie.core.protocol.messages import Down, Step, carries
from coterie.core.protocol.uploads import Count, Flag

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


# What crosses the boundary in the reading decoupled, and what stays.

_OWN = {"control"}  # the private field that training depends on


@dataclass(frozen=True)
class ControlledStage(Stage):
    """Begin of a stage: W(t), and c."""

    control: Params = carries("control variate c, in the form of the parameters, or nothing")


@dataclass(frozen=True)
class ControlledMove(Move):
    """What a client did in a stage; the model sent is not its branch."""

    change: Params = changed("the model's parameters, w_i - W", _OWN)  # each (C, ...)
    loss: Tensor = measured("mean training loss", _OWN)  # (C,)
    local_loss: Tensor = measured(  # (C,) 0 for a client without samples
        "loss f_i of its own model on samples held out, or else its training samples", _OWN
    )
    lr: Tensor = measured("learning rate of training, the same for all")  # (C,)
    epochs: Tensor = measured(  # (C,) int64
        "local epochs of training, the same for all", expected=Count()
    )
    diverged: Tensor = measured("nothing: who diverges is refused", expected=Flag())  # (C,) bool
    control: Params = changed("what corrects its drift, c_i+ - c_i", _OWN)  # each (C, ...)
    share: Tensor = measured("share a_i of what it trained in its own model", _OWN)  # (C,)
    branch_lr: Tensor = measured(  # (C,)
        "learning rate of its branch; 0 where that is mixed of the model sent", _OWN
    )


@dataclass(frozen=True)
class DecoupledState(OwnModel):
    """What a client keeps; ``personal`` is its branch v_i.

    Attributes:
        control: c_i, each ``(C, ...)``.
    """

    control: Params


CONTROLLED_UPDATE = Step("update", ControlledStage, ControlledMove)
