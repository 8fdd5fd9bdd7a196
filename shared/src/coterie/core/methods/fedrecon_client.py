"""The client half of FedRECON: reconstruct the head, freeze it, train the base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData, batch_counts
from coterie.core.data.samples.shares import divide, share_counts
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import Params
from coterie.core.methods.kit.local_sgd import changes, same_for_all
from coterie.core.methods.kit.model_client import (
    GlobalModel,
    ModelClient,
    ModelUpdate,
    OwnModel,
    QualityReport,
)
from coterie.core.methods.reconstruction import Reconstruction, parted
from coterie.core.methods.settings.personal import FedReconSettings
from coterie.core.protocol.client import step
from coterie.core.protocol.messages import Down, Reveals, leaves
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class MeasuredBase(Down):
    """The server's base, to be measured.

    Attributes:
        weights: base and initial head by name.
        head: that the server reconstructed on its own samples; empty where it has none.
    """

    weights: Params
    head: Params


@dataclass(frozen=True)
class BaseUpdate(ModelUpdate):
    """What training on the query set changed in the base; stacked over C clients."""

    change: Params = leaves(  # each (C, ...)
        "change of the base's parameters, g_k - g", reveals=Reveals.PARAMETERS
    )
    samples: Tensor = leaves("number of query samples", reveals=Reveals.STEPS)  # (C,) int64
    loss: Tensor = leaves("mean loss on the query set", reveals=Reveals.MEASUREMENT)  # (C,)


class FedReconClient(ModelClient[OwnModel]):
    """Client of FedRECON (Singhal et al., NeurIPS 2021, Algorithm 1); it keeps nothing.

    In every round its samples are divided anew into support and query. The head is reconstructed on
    the support from the initial one, which the server sends along, then the base is trained on the
    query. Its personal model is made when it is measured: the server's base and the head
    reconstructed on all its training samples. A single sample is support, so its client weighs 0.

    Raises:
        UserError: the module is no classifier, or its body has no parameters to train.
    """

    settings: FedReconSettings

    def __init__(
        self,
        module: nn.Module,
        settings: FedReconSettings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        super().__init__(module, settings, as_batch)
        self.reconstruct = Reconstruction(module, settings, as_batch)

    def newcomers(self, n_clients: int) -> OwnModel:
        """Private state: nothing."""
        return OwnModel({}, torch.zeros(n_clients, dtype=torch.int64))

    def work(self, data: SplitSamples) -> Tensor:
        """Local steps of each client, ``(C,)``."""
        support, size = self._support(data.train), self.settings.batch_size
        rebuilt = self.settings.recon_epochs * batch_counts(support, size)
        return rebuilt + self.settings.epochs * batch_counts(data.lengths - support, size)

    @step
    def update(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[BaseUpdate, None]:
        """Reconstruct the head on the support set, then train the base on the query set."""
        base, initial = parted(same_for_all(down.weights, len(data)))
        support, query = divide(data.train, self._support(data.train), key.fold("support"))
        head = self.reconstruct(base, initial, support, key.fold("reconstruct"))
        fitted = self.local.train(base, self.local.batches(query, key), fixed=head)
        return BaseUpdate(changes(fitted.params, down.weights), query.lengths, fitted.loss), None

    @step
    def evaluate(
        self, down: MeasuredBase, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure the base with its own head and, if there is one, with the server's.

        A client without samples to reconstruct a head on has the server's.
        """
        base, initial = parted(same_for_all(down.weights, len(data)))
        head = self.reconstruct(base, initial, data.train, key.fold("reconstruct"))
        models = {"personal": {**base, **head}}
        if down.head:
            shared = {**down.weights, **down.head}
            models["global"] = same_for_all(shared, 1)
            others = same_for_all(shared, len(data))
            models["personal"] = tree.where_rows(data.lengths > 0, models["personal"], others)
        return self.measured(models, data), None

    def _support(self, data: SampleData) -> Tensor:
        """Sizes of the support sets, ``(C,)``; two samples or more leave one for the query."""
        most = (data.lengths - 1).clamp(min=1).minimum(data.lengths)
        return share_counts(data.lengths, self.settings.support).minimum(most)


__all__ = [
    "BaseUpdate",
    "FedReconClient",
    "FedReconSettings",
    "GlobalModel",
    "MeasuredBase",
    "OwnModel",
]
