"""Local training, the lower bound of every federated method: each client alone."""

from __future__ import annotations

import torch

from coterie.core.federation.cohort import Cohort
from coterie.core.methods.kit.model_client import GlobalModel
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.reference.local_client import LocalClient
from coterie.core.methods.settings.personal import LocalSettings
from coterie.core.tensors.keys import Key


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
            cohort.part(places).ask("receive", GlobalModel(state.weights))
        return state

    def round(self, state: ServerModel, cohort: Cohort, key: Key) -> ServerModel:
        """One round: the clients chosen train on their own."""
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        replies = chosen.ask("train", None)
        cohort.journal.scalar("fed/clients", replies.ids.numel())
        self.evaluate_if_due(state, cohort)
        return state

    def test(self, state: ServerModel, cohort: Cohort) -> None:
        """Enter the personal accuracies and losses into the cohort's journal."""
        self.test_clients(None, cohort)


__all__ = ["LocalClient", "LocalServer", "LocalSettings"]
