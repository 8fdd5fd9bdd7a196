"""The client half of FedAMP: local training held near a mixture of the clients' models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Params
from coterie.core.methods.kit.local_sgd import changes
from coterie.core.methods.kit.model_client import ModelClient, ModelUpdate, OwnModel
from coterie.core.protocol.client import step
from coterie.core.protocol.messages import Down
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class CloudModel(Down):
    """A client's own model at the server; stacked over C clients.

    Attributes:
        weights: u_i, each ``(C, ...)``.
        pull: λ/α_k, ``(C,)``.
    """

    weights: Params
    pull: Tensor


class FedAMPClient(ModelClient[OwnModel]):
    """Client of FedAMP (Huang et al., AAAI 2021, Algorithm 1) for any module."""

    @step
    def update(
        self, down: CloudModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, OwnModel]:
        """Find w_i = argmin F_i(w) + λ/(2 α_k) ‖w - u_i‖² by SGD from u_i and send w_i - u_i.

        Without data w_i is u_i.
        """
        batches = self.local.batches(data.train, key)
        context = {"pull": down.pull, "cloud": down.weights}
        fitted = self.local.train(dict(down.weights), batches, pull=_near, context=context)
        kept = OwnModel(self.kept(fitted.params), mine.rounds + 1)
        return ModelUpdate(changes(fitted.params, down.weights), data.lengths, fitted.loss), kept


def _near(params: Params, context: Any) -> Params:
    strength, cloud = context["pull"], context["cloud"]
    return {
        name: tree.columns(strength.to(value.dtype), value) * (value - cloud[name])
        for name, value in params.items()
    }


__all__ = ["CloudModel", "FedAMPClient"]
