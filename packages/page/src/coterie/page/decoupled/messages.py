"""What crosses the boundary in the reading decoupled, and what stays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.fields import changed, measured
from coterie.core.methods.kit.model_client import OwnModel
from coterie.core.protocol.expected import Count, Flag
from coterie.core.protocol.messages import carries
from coterie.core.protocol.step import Step
from coterie.page.messages import Move, Stage

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
