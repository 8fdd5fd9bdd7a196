"""What the clients of all methods for any module have in common: messages, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.local_training.alone import as_clients, statistics_of
from coterie.core.local_training.fit import Fitted
from coterie.core.local_training.gradients import Pull
from coterie.core.local_training.losses import AsBatch
from coterie.core.local_training.probing import check_layers
from coterie.core.local_training.row_optimizer import Params, RowSGD, RowState
from coterie.core.local_training.watching import constants_of
from coterie.core.methods.kit.branch import Branch
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.model_messages import (
    EVALUATE,
    RECEIVE,
    GlobalModel,
    ModelUpdate,
    OwnModel,
    OwnStart,
    QualityReport,
)
from coterie.core.methods.kit.parts import matching, part, without
from coterie.core.methods.kit.training import LocalTraining, changes, same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.client import Client
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_HELD = 8
"""Models that a client of a chunk takes which is trained by itself: its own and Adam's two moments,
before and after, and what it uploads; the one at work is small beside the chunk."""


P = TypeVar("P", bound=OwnModel)


class ModelClient(Client[P, SplitSamples[SampleData]]):
    """Base of the clients: a newcomer's state, and the evaluation.

    Arguments and errors are those of `coterie.core.methods.kit.training.LocalTraining`; what is
    measured is said in `coterie.core.methods.kit.evaluation.Evaluator`.

    Attributes:
        admits_alone: whether the method keeps what modules need that are trained one client at a
            time (`coterie.core.local_training.alone`); else these are refused.
        admits_branch: whether its clients have no personal model but the one that they send, so
            that they may keep a branch beside it.
        shared: names of the parameters that are federated.
        branch: makes the clients' branches; None = they keep none.

    Raises:
        UserError: a branch is asked for, and the method or the module admits none.
    """

    concurrent = True
    derived = ("_constants",)
    admits_alone: ClassVar[bool] = False
    admits_branch: ClassVar[bool] = False

    def __init__(
        self, module: nn.Module, settings: FedAvgSettings, as_batch: AsBatch | None = None
    ) -> None:
        check_layers(module)
        self._constants = constants_of(module)  # as they are before anything is trained
        self.module, self.settings, self._as_batch = module, settings, as_batch
        self.local = LocalTraining(module, settings, as_batch, admits_alone=self.admits_alone)
        self.evaluator = Evaluator(module, as_batch)
        named = module.named_parameters()
        self._form = {name: value.detach() for name, value in named if value.requires_grad}
        self.shared = matching(self._form, settings.share)
        self.branch = self._branch() if settings.branch.use else None

    def left(self) -> Any:
        """Take what training steps logged beside their answers."""
        return None if self.local.logs is None else self.local.logs.taken()

    def found(self, left: Any) -> None:
        """Add what training steps logged elsewhere."""
        self.local.logs.add(left)

    @property
    def own_form(self) -> nn.Module:
        """Form of a client's own model; by default that of all models."""
        return self.module

    def _branch(self) -> Branch:
        if not self.admits_branch or self.local.alone:
            raise UserError(
                "'branch.use' goes with fedavg, fedprox, scaffold, feddyn and PAGE's reading "
                "decoupled, and with modules whose clients are trained side by side: leave it out"
            )
        return Branch(self.local, self.evaluator, self.settings.branch)

    def constants(self) -> Mapping[str, str]:
        """Digests of what the module computes with and nobody trains."""
        return self._constants

    def enrol(self, data: SplitSamples, key: Key) -> P:
        """Start without a model; it comes from the server."""
        return self.newcomers(len(data))  # type: ignore[return-value]

    def newcomers(self, n_clients: int) -> OwnModel:
        """Private state before the first round, for C clients."""
        models = self.zeros(n_clients)
        kept = part(models, self.shared) if self.settings.keep_models else {}
        return OwnModel(
            kept,
            torch.zeros(n_clients, dtype=torch.int64),
            own=without(models, self.shared),
            optimizer=self.moments(self.local.optimizer.begin(models)),
            statistics=as_clients(statistics_of(self.module), n_clients),
        )

    @RECEIVE
    def receive(self, down: OwnStart, mine: P, data: SplitSamples, key: Key) -> tuple[None, P]:
        """Take the first values of what is not shared, once."""
        return None, replace(mine, own=tree.clone(same_for_all(down.own, len(data))))

    def started(self, shared: Params, mine: P) -> Params:
        """The model that a client begins to train: the shared part given, the rest its own."""
        return part({**shared, **mine.own}, self._form)

    def moments(self, state: RowState) -> RowState | None:
        """What a client keeps of its optimizer's state from round to round."""
        if isinstance(self.local.optimizer, RowSGD) or not self.settings.keep_moments:
            return None
        return state

    def train_from(
        self,
        given: Params,
        mine: P,
        data: SplitSamples,
        key: Key,
        pull: Pull | None = None,
        context: Any = None,
    ) -> tuple[ModelUpdate, Fitted]:
        """Train for E epochs from shared parameters and one's own; a client without data stays.

        Args:
            given: the shared parameters, each ``(C, ...)``.
            mine: of C clients.
            data: of the clients.
            key: the clients' keys, ``(C,)``.
            pull: what the method adds to the gradients.
            context: of the pull; None = ``given``.
        """
        fitted = self.local.train(
            self.started(given, mine),
            self.local.batches(data.train, key),
            pull=pull,
            context=given if context is None else context,
            state=mine.optimizer,
            statistics=mine.statistics,
        )
        change = changes(part(fitted.params, self.shared), given)
        return ModelUpdate(change, data.lengths, fitted.loss), fitted

    def after(self, mine: P, fitted: Fitted) -> P:
        """What a client keeps of a round's training."""
        return replace(
            mine,
            personal=self.kept(part(fitted.params, self.shared)),
            rounds=mine.rounds + 1,
            own=without(fitted.params, self.shared),
            optimizer=self.moments(fitted.state),
            statistics=fitted.statistics,
        )

    def zeros(self, n_clients: int) -> Params:
        """Zeros in the form of the model's parameters, each ``(C, ...)``."""
        return {n: v.new_zeros(n_clients, *v.shape) for n, v in self._form.items()}

    def kept(self, params: Params) -> Params:
        """What a client keeps of its model after training."""
        return dict(params) if self.settings.keep_models else {}

    def own_model(self, received: Params, sent: Params, data: SplitSamples, key: Key) -> Params:
        """What a client keeps of a round as its own model: the one that it sends, or its branch.

        Args:
            received: the server's model, each ``(C, ...)``.
            sent: models after training, each ``(C, ...)``.
            data: of the clients.
            key: the clients' keys, ``(C,)``.
        """
        if self.branch is None:
            return self.kept(sent)
        return self.branch.best(received, sent, data, key).params

    def work(self, data: SplitSamples) -> Tensor:
        """Local steps of each client, ``(C,)``."""
        steps = self.local.steps(data.train)
        return steps if self.branch is None else steps + self.branch.steps(data)

    def footprint(self, data: SplitSamples, down: Any) -> Tensor:
        """Bytes of parameters, gradients and new parameters of a client, batch and orders.

        Clients that are trained one after the other have their state and uploads in common alone.
        """
        model = sum(value.numel() * value.element_size() for value in self._form.values())
        orders = 8 * self.settings.epochs * data.lengths  # of all epochs, int64
        if self.local.alone:
            return orders + _HELD * model
        sample = data.train.sample_bytes()
        batch = self.settings.batch_size or int(data.lengths.max())
        together = 1 if self.branch is None else len(self.branch.rates)
        return orders + together * (4 * model + 4 * batch * sample)

    @EVALUATE
    def evaluate(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure the server's model, and the client's own, on its validation and test samples.

        A client that has not trained yet has the server's; else a mean over clients would begin
        with the few that trained first, and its best round be theirs.
        """
        rest = {**mine.own, **mine.statistics}
        shared = {name: value[None] for name, value in down.weights.items()}
        models = {"global": {**shared, **rest}}
        if mine.personal:
            given = same_for_all(down.weights, len(data))
            personal = tree.where_rows(mine.rounds > 0, mine.personal, given)
            models["personal"] = {**personal, **rest}
        return self.measured(models, data), None

    def measured(self, models: dict[str, Params], data: SplitSamples) -> QualityReport:
        """Measure models on the validation and test samples.

        Args:
            models: ``global``, ``personal``, or both; each parameter, and running statistics where
                the module keeps any, ``(C, ...)``, or ``(1, ...)`` where all have the same.
            data: of C clients.
        """
        found: dict[str, Tensor] = {}
        for model, params in models.items():
            for name, samples in (("valid", data.valid), ("test", data.test)):
                quality = self.evaluator.of_clients(params, samples)
                found |= {f"{model}/{name}/{n}": value for n, value in quality.values.items()}
        lengths = {"valid": data.valid.lengths, "test": data.test.lengths}
        return QualityReport(found, lengths)
