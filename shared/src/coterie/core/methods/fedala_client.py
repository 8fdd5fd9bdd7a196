"""The client half of FedALA: start between the own and the server's model, then local SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Params
from coterie.core.methods.adaptive_aggregation import AdaptiveAggregation
from coterie.core.methods.kit.local_sgd import changes, same_for_all
from coterie.core.methods.kit.model_client import GlobalModel, ModelClient, ModelUpdate, OwnModel
from coterie.core.methods.settings.personal import FedALASettings
from coterie.core.protocol.client import step
from coterie.core.protocol.messages import Reveals, leaves
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_OWN = {"personal", "rounds", "aggregation"}


@dataclass(frozen=True)
class FedALAModel(OwnModel):
    """What a client of FedALA keeps.

    Attributes:
        aggregation: W_i, weights in [0, 1] of the last layers' parameters, each ``(C, ...)``.
    """

    aggregation: Params


@dataclass(frozen=True)
class FedALAUpdate(ModelUpdate):
    """A `ModelUpdate` of a client that starts from what it keeps."""

    change: Params = leaves(  # each (C, ...)
        "change of the model's parameters, w_k - w", reveals=Reveals.PARAMETERS, depends_on=_OWN
    )
    samples: Tensor = leaves("number of samples n_k", reveals=Reveals.STEPS)  # (C,) int64
    loss: Tensor = leaves(  # (C,)
        "mean training loss", reveals=Reveals.MEASUREMENT, depends_on=_OWN
    )


class FedALAClient(ModelClient[FedALAModel]):
    """Client of FedALA (Zhang et al., AAAI 2023, Algorithm 1) for any module.

    The paper sends the first model to all clients before training. Here a client that takes part
    for the first time starts from the server's model of that round; if all take part in every
    round, that is the same.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: FedALASettings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        super().__init__(module, settings, as_batch)
        self.aggregation = AdaptiveAggregation(self.local, settings, list(self._form))

    def newcomers(self, n_clients: int) -> FedALAModel:
        """Private state before the first round: no model, all weights 1."""
        models = self.zeros(n_clients)
        ones = {name: torch.ones_like(models[name]) for name in self.aggregation.names}
        return FedALAModel(models, torch.zeros(n_clients, dtype=torch.int64), ones)

    @step
    def update(
        self, down: GlobalModel, mine: FedALAModel, data: SplitSamples, key: Key
    ) -> tuple[FedALAUpdate, FedALAModel]:
        """Learn W_i, start from the mixture, run E epochs of SGD."""
        new = same_for_all(down.weights, len(data))
        ends = self.aggregation.between(mine.personal, new)
        weights = self.aggregation.learn(
            mine.aggregation, ends, data.train, turn=mine.rounds, key=key.fold("aggregation")
        )
        mixed = self.aggregation.start(weights, ends)
        start = tree.where_rows(mine.rounds == 0, new, mixed)
        fitted = self.local.train(start, self.local.batches(data.train, key))
        update = FedALAUpdate(changes(fitted.params, down.weights), data.lengths, fitted.loss)
        return update, FedALAModel(dict(fitted.params), mine.rounds + 1, weights)


__all__ = ["FedALAClient", "FedALAModel", "FedALASettings", "FedALAUpdate", "GlobalModel"]
