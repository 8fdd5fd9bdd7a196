"""Central training, the upper bound of federated methods: all samples in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.shares import pooled
from coterie.core.errors import UserError
from coterie.core.local_training.fit import AsBatch
from coterie.core.methods.kit.local_sgd import LocalSGD, same_for_all
from coterie.core.methods.kit.model_client import ModelClient, OwnModel
from coterie.core.methods.kit.model_server import ModelServer, ServerModel, ServerSamples
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.tensors.keys import Key


class CentralClient(ModelClient[OwnModel]):
    """Client that trains nothing, keeps nothing, and evaluates."""

    def newcomers(self, n_clients: int) -> OwnModel:
        """Private state: nothing."""
        return OwnModel({}, torch.zeros(n_clients, dtype=torch.int64))


class CentralServer(ModelServer[ServerModel]):
    """Server that has the training samples of all clients and runs E epochs of SGD in a round.

    It makes the steps of one FedAvg client that holds everything. ``fraction``, ``weighting`` and
    ``keep_models`` mean nothing here; there are no personal models. Takes the training samples of
    all clients as ``train`` beside the arguments of `ModelServer`.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        settings: FedAvgSettings,
        train: SampleData,
        samples: ServerSamples | None = None,
        as_batch: AsBatch | None = None,
    ) -> None:
        super().__init__(build, settings, samples, as_batch)
        self.train = pooled(train)

    @cached_property
    def local(self) -> LocalSGD:
        """Trains the model."""
        return LocalSGD(self.module, self.settings, self._as_batch)

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """Run E epochs of SGD on all samples.

        Raises:
            UserError: the training diverged.
        """
        batches = self.local.batches(self.train, key.fold("central").fold(self.train.ids))
        fitted = self.local.train(same_for_all(state.weights, 1), batches)
        if not all(bool(value.isfinite().all()) for value in fitted.params.values()):
            raise UserError(
                "central training diverged: lower the learning rate, or clip gradients at a norm"
            )
        if batches.steps.any():
            cohort.journal.scalar("fed/loss", fitted.loss[0])
        state = replace(state, weights={name: v[0] for name, v in fitted.params.items()})
        self.evaluate_if_due(state, cohort)
        return state
