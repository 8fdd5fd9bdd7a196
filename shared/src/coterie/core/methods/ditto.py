"""Ditto: FedAvg, beside which every client trains a personal model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.alone import as_clients, statistics_of
from coterie.core.local_training.gradients import towards
from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import (
    UPDATE,
    GlobalModel,
    ModelUpdate,
    OwnModel,
    QualityReport,
)
from coterie.core.methods.kit.training import same_for_all
from coterie.core.methods.kit.uploads import measured
from coterie.core.methods.settings.any_module import DittoSettings
from coterie.core.protocol.messages import Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_MEASURED = {"personal", "rounds", "own", "statistics", "personal_statistics"}
"""The private fields that the quality of both models depends on."""


@dataclass(frozen=True)
class DittoModel(OwnModel):
    """What a client of Ditto keeps: ``personal`` is v, all its parameters; other fields are of w.

    Attributes:
        personal_optimizer: state of the optimizer of v, where it remembers anything.
        personal_statistics: running statistics of v, each ``(C, ...)``.
    """

    personal_optimizer: RowState | None = field(default=None, kw_only=True)
    personal_statistics: Params = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class DittoReport(QualityReport):
    """How good w and v are on the clients' samples; keys as of `QualityReport`."""

    measures: dict[str, Tensor] = measured("quality of the server's and its own model", _MEASURED)


EVALUATE = Step("evaluate", GlobalModel, DittoReport)


class DittoClient(ModelClient[DittoModel]):
    """Client of Ditto (Li et al., ICML 2021, Algorithm 1)."""

    settings: DittoSettings
    admits_alone = True

    def newcomers(self, n_clients: int) -> DittoModel:
        """Private state before the first round: of w as of v."""
        own, models = super().newcomers(n_clients), self.zeros(n_clients)
        return DittoModel(
            models,
            own.rounds,
            own=own.own,
            optimizer=own.optimizer,
            statistics=own.statistics,
            personal_optimizer=self.moments(self.local.optimizer.begin(models)),
            personal_statistics=as_clients(statistics_of(self.module), n_clients),
        )

    @UPDATE
    def update(
        self, down: GlobalModel, mine: DittoModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, DittoModel]:
        """Train w as in FedAvg, and v by v <- v - η (∇f(v) + λ (v - w)) near the w received.

        A personal model starts at the first w that its client receives; that of a client without
        data is w.
        """
        near = same_for_all(down.weights, len(data))
        up, of_w = self.train_from(near, mine, data, key)
        has_own = (mine.rounds > 0) & (data.lengths > 0)
        start = tree.where_rows(has_own, mine.personal, self.started(near, mine))
        of_v = self.local.train(
            start,
            self.local.batches(data.train, key.fold("personal"), self._personal_epochs),
            lr=self.settings.personal_lr,
            pull=towards(self.settings.lam),
            context=near,
            state=mine.personal_optimizer,
            statistics=mine.personal_statistics,
        )
        kept = replace(
            self.after(mine, of_w),
            personal=of_v.params,
            personal_optimizer=self.moments(of_v.state),
            personal_statistics=of_v.statistics,
        )
        return up, kept

    @EVALUATE
    def evaluate(
        self, down: GlobalModel, mine: DittoModel, data: SplitSamples, key: Key
    ) -> tuple[DittoReport, None]:
        """Measure w, and v once it is trained, on the validation and test samples."""
        shared = {name: value[None] for name, value in down.weights.items()}
        of_w = {**shared, **mine.own, **mine.statistics}
        start = self.started(same_for_all(down.weights, len(data)), mine)
        personal = tree.where_rows(mine.rounds > 0, mine.personal, start)
        models = {"global": of_w, "personal": {**personal, **mine.personal_statistics}}
        found = self.measured(models, data)
        return DittoReport(found.measures, found.samples), None

    def work(self, data: SplitSamples) -> Tensor:
        """Local steps of each client for both models, ``(C,)``."""
        steps, epochs = super().work(data), self.settings.epochs
        return steps // epochs * (epochs + self._personal_epochs)

    @property
    def _personal_epochs(self) -> int:
        return self.settings.personal_epochs or self.settings.epochs


class DittoServer(FedAvgServer):
    """Server of Ditto: that of FedAvg, to which clients report of both their models."""

    measuring = EVALUATE
