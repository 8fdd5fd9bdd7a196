"""Local and central training, the bounds of federated methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from coterie.core.data.samples.samples import SampleData, in_memory
from coterie.core.data.samples.split_samples import SplitSamples, pooled
from coterie.core.errors import UserError
from coterie.core.local_training.alone import statistics_of
from coterie.core.local_training.losses import AsBatch
from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import (
    RECEIVE,
    GlobalModel,
    OwnModel,
    OwnStart,
    QualityReport,
)
from coterie.core.methods.kit.model_server import ModelServer, ServerModel, ServerSamples
from coterie.core.methods.kit.training import LocalTraining, same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Step, carries
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

TRAIN = Step("train", None, None)
EVALUATE_OWN = Step("evaluate", None, QualityReport)


class LocalClient(ModelClient[OwnModel]):
    """Client that learns alone; all start from the same model, of which nothing is shared."""

    admits_alone = True

    @RECEIVE
    def receive(
        self, down: OwnStart, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[None, OwnModel]:
        """Take the initial model, once."""
        return None, replace(mine, personal=tree.clone(same_for_all(down.own, len(data))))

    @TRAIN
    def train(
        self, down: None, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[None, OwnModel]:
        """Train for E epochs from its own model."""
        _, fitted = self.train_from(mine.personal, mine, data, key)
        return None, self.after(mine, fitted)

    @EVALUATE_OWN
    def evaluate(
        self, down: None, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure its own model; there is no other."""
        return self.measured({"personal": {**mine.personal, **mine.statistics}}, data), None


class LocalServer(ModelServer[ServerModel]):
    """Server that only gives the initial model out and collects accuracies.

    There is no global model: only ``personal_…`` is measured, and no training loss, for nothing
    but reports of evaluations leaves a client.
    """

    def start_block(self, state: ServerModel, block: int, cohort: Cohort, key: Key) -> ServerModel:
        """Enrol newcomers and give them the initial model."""
        self.welcome(cohort, state.weights)
        return state

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """One round: the clients chosen train on their own."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        replies = chosen.ask(TRAIN, None)
        cohort.journal.scalar("fed/clients", replies.ids.numel())
        self.evaluate_if_due(state, cohort)
        return state

    def test(self, state: ServerModel, cohort: Cohort) -> None:
        """Enter the personal accuracies and losses into the cohort's journal."""
        self.note_clients(cohort.ask(EVALUATE_OWN, None), cohort)


# Central training, the upper bound of federated methods: all samples in one place.


@dataclass(frozen=True)
class CentralModel(GlobalModel):
    """The server's model w, whole."""

    statistics: Params = carries("running statistics of its batch normalisation, by name")


EVALUATE_POOLED = Step("evaluate", CentralModel, QualityReport)


class CentralClient(ModelClient[OwnModel]):
    """Client that trains nothing, keeps nothing, and evaluates."""

    admits_alone = True

    def newcomers(self, n_clients: int) -> OwnModel:
        """Private state: nothing."""
        return OwnModel({}, torch.zeros(n_clients, dtype=torch.int64))

    @EVALUATE_POOLED
    def evaluate(
        self, down: CentralModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure the server's model on the validation and test samples."""
        model = {**down.weights, **down.statistics}
        return self.measured({"global": {n: v[None] for n, v in model.items()}}, data), None


@dataclass(frozen=True)
class TrainedModel(ServerModel):
    """State of the server.

    Attributes:
        optimizer: state of its optimizer, where that remembers anything; None before a round.
        statistics: running statistics of its batch normalisation.
    """

    optimizer: RowState | None = field(default=None, kw_only=True)
    statistics: Params = field(default_factory=dict, kw_only=True)


class CentralServer(ModelServer[TrainedModel]):
    """Server that has the training samples of all clients and makes E epochs in a round.

    It makes the steps of one FedAvg client that holds everything. ``fraction``, ``weighting`` and
    ``keep_models`` mean nothing here; there are no personal models. Takes the training samples of
    all clients as ``train`` beside the arguments of `ModelServer`.

    Raises:
        UserError: they are not in memory.
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
        self.train = pooled(in_memory(train))

    @cached_property
    def local(self) -> LocalTraining:
        """Trains the model."""
        return LocalTraining(self.module, self.settings, self._as_batch, admits_alone=True)

    def begin(self, key: Key) -> TrainedModel:
        """Start with the initial parameters."""
        statistics = {n: v.detach().clone() for n, v in statistics_of(self.module).items()}
        return TrainedModel(self.initial(key), statistics=statistics)

    def round(self, state: TrainedModel, cohort: Cohort, key: Key) -> TrainedModel:
        """Make E epochs over all samples.

        Raises:
            UserError: the training diverged.
        """
        batches = self.local.batches(self.train, key.fold("central").fold(self.train.ids))
        fitted = self.local.train(
            same_for_all(state.weights, 1),
            batches,
            state=state.optimizer,
            statistics=same_for_all(state.statistics, 1),
        )
        if not all(bool(value.isfinite().all()) for value in fitted.params.values()):
            raise UserError(
                "central training diverged: lower the learning rate, or clip gradients at a norm"
            )
        if batches.steps.any():
            cohort.journal.scalar("fed/loss", fitted.loss[0])
        keeps = self.settings.optimizer != "sgd" and self.settings.keep_moments
        state = replace(
            state,
            weights={name: v[0] for name, v in fitted.params.items()},
            optimizer=fitted.state if keeps else None,
            statistics={name: v[0] for name, v in fitted.statistics.items()},
        )
        self.evaluate_if_due(state, cohort)
        return state

    def test(self, state: TrainedModel, cohort: Cohort) -> None:
        """Enter the measures of the model on the server's samples and on those of the clients."""
        self.test_server({**state.weights, **state.statistics}, cohort)
        down = CentralModel(state.weights, state.statistics)
        self.note_clients(cohort.ask(EVALUATE_POOLED, down), cohort)
