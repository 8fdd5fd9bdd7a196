"""The client half of SCAFFOLD: local SGD corrected by control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Params
from coterie.core.methods.kit.local_sgd import changes, same_for_all
from coterie.core.methods.kit.model_client import GlobalModel, ModelClient, ModelUpdate, OwnModel
from coterie.core.methods.kit.sizes_client import TellsSize, anew
from coterie.core.protocol.client import step
from coterie.core.protocol.messages import Reveals, leaves
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class ControlledModel(GlobalModel):
    """The server's model x and control variate c.

    Attributes:
        control: c, in the form of the parameters.
        block: number of the block, with which control variates begin.
    """

    control: Params
    block: int


@dataclass(frozen=True)
class ControlledUpdate(ModelUpdate):
    """What a client's local training changed; stacked over C clients."""

    change: Params = leaves(  # each (C, ...)
        "change of the model's parameters, y_i - x",
        reveals=Reveals.PARAMETERS,
        depends_on={"control", "block"},
    )
    loss: Tensor = leaves(  # (C,)
        "mean training loss", reveals=Reveals.MEASUREMENT, depends_on={"control", "block"}
    )
    control: Params = leaves(  # each (C, ...)
        "change of the control variate, c_i+ - c_i",
        reveals=Reveals.PARAMETERS,
        depends_on={"control", "block"},
    )


@dataclass(frozen=True)
class OwnControl(OwnModel):
    """What a client keeps.

    Attributes:
        control: c_i, each ``(C, ...)``.
        block: ``(C,)`` int64, number of the block that it is of.
    """

    control: Params
    block: Tensor


class ScaffoldClient(TellsSize, ModelClient[OwnControl]):
    """Client of SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1) for any module."""

    def newcomers(self, n_clients: int) -> OwnControl:
        """Start with c_i = 0."""
        own = super().newcomers(n_clients)
        return OwnControl(
            own.personal, own.rounds, self.zeros(n_clients), torch.zeros_like(own.rounds)
        )

    @step
    def update(
        self, down: ControlledModel, mine: OwnControl, data: SplitSamples, key: Key
    ) -> tuple[ControlledUpdate, OwnControl]:
        """Run K steps y_i <- y_i - η_l (g_i(y_i) - c_i + c) from x, then c_i <- c_i+ (option II).

        K is the client's own number of steps; without data nothing changes.
        """
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key)
        before = anew(mine.control, mine.block, down.block)
        correction = {name: c - before[name] for name, c in down.control.items()}
        fitted = self.local.train(start, batches, pull=_corrected, context=correction)
        change = changes(fitted.params, down.weights)
        moved = _moved(change, down.control, self.settings.lr * batches.steps.double())
        own = {name: c + moved[name] for name, c in before.items()}
        now = torch.full_like(mine.block, down.block)
        kept = OwnControl(self.kept(fitted.params), mine.rounds + 1, own, now)
        return ControlledUpdate(change, data.lengths, fitted.loss, moved), kept


def _corrected(params: Params, correction: Any) -> Params:
    return dict(correction)


def _moved(change: Params, control: Params, way: Tensor) -> Params:
    """c_i+ - c_i = (x - y_i)/(K η_l) - c; 0 where K is.

    Args:
        change: y_i - x, each ``(C, ...)``.
        control: c.
        way: K η_l, ``(C,)``.
    """
    moved = {}
    for name, value in change.items():
        length = tree.columns(way.to(value.dtype), value)
        moved[name] = torch.where(length > 0, -value / length - control[name], 0.0)
    return moved


__all__ = ["ControlledModel", "ControlledUpdate", "OwnControl", "ScaffoldClient"]
