"""Local training, the lower bound of every federated method: each client alone."""

from __future__ import annotations

import torch

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.kit.local_sgd import same_for_all
from coterie.core.methods.kit.model_client import GlobalModel, ModelClient, OwnModel, QualityReport
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.step import Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

RECEIVE = Step("receive", GlobalModel, None)
TRAIN = Step("train", None, None)
EVALUATE = Step("evaluate", None, QualityReport)


class LocalClient(ModelClient[OwnModel]):
    """Client that learns alone; all start from the same model."""

    @RECEIVE
    def receive(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[None, OwnModel]:
        """Take the initial model, once."""
        return None, OwnModel(tree.clone(same_for_all(down.weights, len(data))), mine.rounds)

    @TRAIN
    def train(
        self, down: None, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[None, OwnModel]:
        """Run E epochs of SGD from its own model."""
        fitted = self.local.train(mine.personal, self.local.batches(data.train, key))
        return None, OwnModel(dict(fitted.params), mine.rounds + 1)

    @EVALUATE
    def evaluate(
        self, down: None, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure its own model; there is no other."""
        return self.measured({"personal": mine.personal}, data), None


class LocalServer(ModelServer[ServerModel]):
    """Server that only gives the initial model out and collects accuracies.

    There is no global model: only ``personal_…`` is measured, and no training loss, for nothing
    but reports of evaluations leaves a client.
    """

    def start_block(self, state: ServerModel, block: int, cohort: Cohort, key: Key) -> ServerModel:
        """Enrol newcomers and give them the initial model."""
        newcomers = cohort.enrol()
        if newcomers.numel():
            places = torch.searchsorted(cohort.ids, newcomers)
            cohort.part(places).ask(RECEIVE, GlobalModel(state.weights))
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
        self.note_clients(cohort.ask(EVALUATE, None), cohort)
