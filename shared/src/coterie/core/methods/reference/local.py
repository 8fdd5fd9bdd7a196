"""Local training, the lower bound of every federated method: each client alone."""

from __future__ import annotations

from dataclasses import replace

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.kit.model_client import (
    RECEIVE,
    ModelClient,
    OwnModel,
    OwnStart,
    QualityReport,
)
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.kit.training import same_for_all
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.step import Step
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
