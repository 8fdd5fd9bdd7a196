"""One run of LLM-based federated recommendation: its data, its two halves, its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from coterie.core.data.catalogue import load
from coterie.core.data.interactions import Interactions
from coterie.core.data.kcore import k_core
from coterie.core.data.names import default_core
from coterie.core.errors import UserError
from coterie.core.federation import Federation
from coterie.core.privacy.attack import AttackReport
from coterie.core.privacy.build import middleware
from coterie.core.rounds import FederatedModule
from coterie.core.runfolder import DEFAULT_OUT
from coterie.core.seeding import Key
from coterie.llm.algorithm import PPLR
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.make import make_backbone
from coterie.llm.client import Organisation
from coterie.llm.data.client_data import FederatedData, OrganisationData, build
from coterie.llm.data.examples import Examples
from coterie.llm.readings import resolve
from coterie.llm.settings import Settings


class Experiment:
    """Build everything that `coterie train pplr` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = resolve(settings)

    @cached_property
    def data(self) -> FederatedData:
        """The interactions, split by time and shared out among clients."""
        data = self.settings.data
        interactions = load(data.name, data.root, data.columns)
        core = default_core(data.name) if data.min_interactions is None else data.min_interactions
        return build(
            k_core(interactions, core),
            data.clients,
            Key.from_seed(self.settings.seed).fold("data"),
            max_history=data.max_history,
            stride=data.stride,
            span=data.span,
            shots=data.shots,
            public_share=data.public,
        )

    @cached_property
    def clients(self) -> OrganisationData:
        """What the clients read; in the method `central` the first one has everybody's examples."""
        clients = self.data.clients
        if not any(map(len, clients.train)):
            raise UserError("no client has a training example: use more data or fewer public users")
        if self.settings.method != "central":
            return clients
        none = clients.train[0].take(torch.arange(0))
        return replace(clients, train=[_pooled(clients.train)] + [none] * (len(clients) - 1))

    @property
    def interactions(self) -> Interactions:
        """The filtered interactions."""
        return self.data.interactions

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen network that all clients share, with the adapter they start from."""
        folder = Path(self.settings.run.out or DEFAULT_OUT).expanduser() / "pplr" / "backbones"
        return make_backbone(self.settings, self.data, folder)

    def describe_data(self) -> list[dict[str, Any]]:
        """Count users, examples and targets of every client, and of all together."""
        rows: list[dict[str, Any]] = list(self.data.describe_clients())
        total = {name: sum(row[name] for row in rows) for name in rows[0]}
        return [*rows, total | {"client": "all"}]

    def federation(self) -> Federation:
        """Build both halves."""
        settings = self.settings
        client = Organisation(settings, self.backbone)
        return Federation(
            server=PPLR(settings, settings.data.clients, client.adapter.row()),
            client=client,
            blocks=[self.clients],
            seed=settings.seed,
            rounds=settings.rounds,
            middleware=middleware(settings.privacy),
            monitor="eval/recall@10",
        )

    def attack(self, module: FederatedModule, scales: Sequence[float]) -> dict[float, AttackReport]:
        """Refuse: what an adapter tells is another question than which item rows moved.

        Raises:
            UserError: always.
        """
        raise UserError("no item rows leave a client of pplr: see `coterie llm attack`")

    def reference(self) -> dict[str, float]:
        """The paper's Table 1 has no value for the data sets that are here."""
        return {}

    def final_metrics(self, results: Mapping[str, float]) -> dict[str, float]:
        """Give the tests of the best round as they are."""
        return dict(results)


def _pooled(parts: Sequence[Examples]) -> Examples:
    history = parts[0].history
    for part in parts[1:]:
        history = history.concatenate(part.history)
    return Examples(history, torch.cat([part.target for part in parts]))
