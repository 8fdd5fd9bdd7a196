"""Ditto: FedAvg, beside which every client trains a personal model."""

from __future__ import annotations

from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.fedavg import FedAvgClient
from coterie.core.methods.kit.local_sgd import same_for_all, towards
from coterie.core.methods.kit.model_client import UPDATE, GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.settings.proximal import DittoSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


class DittoClient(FedAvgClient):
    """Client of Ditto (Li et al., ICML 2021, Algorithm 1); the server is FedAvg's."""

    settings: DittoSettings

    @UPDATE
    def update(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, OwnModel]:
        """Train w as in FedAvg, and v by v <- v - η (∇f(v) + λ (v - w)) near the w received.

        A personal model starts at the first w that its client receives; that of a client without
        data is w.
        """
        up, _ = super().update(down, mine, data, key)
        near = same_for_all(down.weights, len(data))
        has_own = (mine.rounds > 0) & (data.lengths > 0)
        start = tree.where_rows(has_own, mine.personal, near)
        batches = self.local.batches(data.train, key.fold("personal"), self._personal_epochs)
        lr, pull = self.settings.personal_lr, towards(self.settings.lam)
        fitted = self.local.train(start, batches, lr=lr, pull=pull, context=near)
        return up, OwnModel(fitted.params, mine.rounds + 1)

    def work(self, data: SplitSamples) -> Tensor:
        """Local steps of each client for both models, ``(C,)``."""
        steps, epochs = super().work(data), self.settings.epochs
        return steps // epochs * (epochs + self._personal_epochs)

    @property
    def _personal_epochs(self) -> int:
        return self.settings.personal_epochs or self.settings.epochs
