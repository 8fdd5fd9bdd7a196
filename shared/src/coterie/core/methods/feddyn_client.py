"""The client half of FedDyn: local training with a dynamic regularizer."""

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
from coterie.core.methods.settings.drift import FedDynSettings
from coterie.core.protocol.client import step
from coterie.core.protocol.messages import Reveals, leaves
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class DynamicModel(GlobalModel):
    """The server's model W.

    Attributes:
        mean_samples: mean number of samples of the clients that have any.
        block: number of the block, with which the gradients begin.
    """

    mean_samples: float
    block: int


@dataclass(frozen=True)
class DynamicUpdate(ModelUpdate):
    """What a client's local training changed; stacked over C clients."""

    change: Params = leaves(  # each (C, ...)
        "change of the model's parameters, w_i - W",
        reveals=Reveals.PARAMETERS,
        depends_on={"gradient", "block"},
    )
    loss: Tensor = leaves(  # (C,)
        "mean training loss", reveals=Reveals.MEASUREMENT, depends_on={"gradient", "block"}
    )


@dataclass(frozen=True)
class OwnGradient(OwnModel):
    """What a client keeps.

    Attributes:
        gradient: h_i, the gradient of its loss at its last model by the rule of FedDyn, each
            ``(C, ...)``.
        block: ``(C,)`` int64, number of the block that it is of.
    """

    gradient: Params
    block: Tensor


class FedDynClient(TellsSize, ModelClient[OwnGradient]):
    """Client of FedDyn (Acar et al., ICLR 2021, Algorithm 1) for any module."""

    settings: FedDynSettings

    def newcomers(self, n_clients: int) -> OwnGradient:
        """Start with h_i = 0."""
        own = super().newcomers(n_clients)
        return OwnGradient(
            own.personal, own.rounds, self.zeros(n_clients), torch.zeros_like(own.rounds)
        )

    @step
    def update(
        self, down: DynamicModel, mine: OwnGradient, data: SplitSamples, key: Key
    ) -> tuple[DynamicUpdate, OwnGradient]:
        """Minimise f_i(w) - <h_i, w> + α_i/2 ‖w - W‖² by SGD, then h_i <- h_i - α_i (w_i - W)."""
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key)
        alpha = self._alpha(data.lengths, down)
        before = anew(mine.gradient, mine.block, down.block)
        context = {"alpha": alpha, "centre": start, "gradient": before}
        fitted = self.local.train(start, batches, pull=_regularized, context=context)
        change = changes(fitted.params, down.weights)
        gradient = {name: h - alpha[name] * change[name] for name, h in before.items()}
        now = torch.full_like(mine.block, down.block)
        kept = OwnGradient(self.kept(fitted.params), mine.rounds + 1, gradient, now)
        return DynamicUpdate(change, data.lengths, fitted.loss), kept

    def _alpha(self, lengths: Tensor, down: DynamicModel) -> Params:
        """α_i, for each parameter in a shape ``(C, 1, ...)`` that broadcasts."""
        weight = torch.ones(len(lengths), dtype=torch.float64)
        if self.settings.weighting == "samples":
            weight = lengths.clamp(min=1).double() / down.mean_samples
        alpha = self.settings.alpha / weight
        return {
            name: tree.columns(alpha.to(value.dtype), value[None])
            for name, value in down.weights.items()
        }


def _regularized(params: Params, context: Any) -> Params:
    alpha, centre, gradient = (context[part] for part in ("alpha", "centre", "gradient"))
    return {
        name: alpha[name] * (value - centre[name]) - gradient[name]
        for name, value in params.items()
    }


__all__ = ["DynamicModel", "DynamicUpdate", "FedDynClient", "OwnGradient"]
