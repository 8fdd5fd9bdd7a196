"""A trained run, opened to look into: the whole backbone with the adapter of a client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.run.runfolder import RunFolder, paper_of
from coterie.core.run.serving import open_run
from coterie.core.tensors.saved import load
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import SplitSettings
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.examples import Examples
from coterie.llm.experiment import Experiment
from coterie.llm.ranks_with import frozen_items, own_adapter, own_bias
from coterie.llm.settings import USER_METHODS, Settings
from coterie.llm.state import ServerState


class TrainedRun:
    """The best round of a run. Of a split model both halves are put together here.

    Data and settings, but for the split, are those of ``experiment``.

    Args:
        path: of the run.
        server: folder in which `coterie llm serve` has kept its layers' part, if it was elsewhere.

    Raises:
        UserError: there is no such run, it is of another paper or of a method without a language
            model, or its checkpoint is missing or damaged.
    """

    def __init__(self, path: Path, server: Path | None = None) -> None:
        self._server = server
        paper = paper_of(path)
        if paper.name != "pplr":
            raise UserError(f"{path} is a run of {paper.name}, not of pplr")
        settings: Settings = RunFolder.open(path).settings
        if settings.method in USER_METHODS:
            raise UserError(f"{path} is a run of {settings.method}, which has no language model")
        found: Any = open_run(path, lambda own: replace(own, split=SplitSettings()))
        self.experiment: Experiment = found[0]
        self._module: FederatedRun = found[1]
        self._state: ServerState = self._module.server_state
        self._client: Any = self._module.federation.client
        self._start: Tensor = self._client.start
        self._k = settings.split.k

    @property
    def n_clients(self) -> int:
        """K."""
        return self._state.best.shape[0]

    @property
    def best_round(self) -> int:
        """The round of the best validation, from 1; 0 before the first."""
        return self._state.chosen.round

    def start(self) -> Backbone:
        """Give the shared backbone as it was before the first round."""
        self._client.load(self._start)
        return self._client.backbone

    def backbone(self, client: int) -> Backbone:
        """Give the shared backbone with the adapter of a client, and its frozen items, in it.

        Raises:
            UserError: there is no such client.
        """
        own = own_bias(self._module, self.experiment.clients[client])
        self._client.load(self.row(client), frozen_items(self._module, client), own)
        return self._client.backbone

    def row(self, client: int) -> Tensor:
        """Give the adapter of a client, ``(d,)``, in the order of the whole backbone.

        Raises:
            UserError: there is no such client.
        """
        self.check(client)
        row = self._state.best[client]
        if self._k is None:
            return own_adapter(self._module, self.experiment.clients[client], row)
        middle = self._middle_rows()[client].to(row)
        return whole_row(self._client.backbone, torch.cat([row, middle]), self._k)

    def _middle_rows(self) -> Tensor:
        """The server's part of all clients, ``(K, d)``, of the best round."""
        kept = self._state.best_middle
        assert kept is not None  # of a split model
        if kept.part is not None:
            return kept.part.rows
        size = self._start.numel() - self._state.best.shape[1]
        if kept.number == 0:  # nobody has trained: it is what all start from
            inside = inside_middle(self._client.backbone, self._k or 0)
            return self._start[inside].expand(self.n_clients, size)
        if self._server is None:
            raise UserError(
                "the adapters of the server's layers are with `coterie llm serve`, not in the run: "
                "give its folder, as --state OUT/pplr/server/kept"
            )
        path = self._server / kept.run / f"{kept.number}.pt"
        if not path.is_file():
            raise UserError(f"{path} is missing: it holds what the server made of the best round")
        rows: Tensor = load(path)["rows"]
        return rows

    def examples(self, client: int, most: int) -> Examples:
        """Give some training examples of a client, or of another one if it has none."""
        parts = self.experiment.data.clients.train
        part = parts[client] if len(parts[client]) else max(parts, key=len)
        return part.take(torch.arange(min(len(part), most)))

    def check(self, client: int) -> None:
        """Raise a `UserError` for a client who is none."""
        if not 0 <= client < self.n_clients:
            raise UserError(f"client {client} is none of the run: choose 0 to {self.n_clients - 1}")

    def check_trained(self, client: int) -> None:
        """Refuse a client whose adapter is the one that all started from.

        Raises:
            UserError: it is, or there is no such client.
        """
        if torch.equal(self.row(client), self._start):
            raise UserError(
                f"the adapter of client {client} is empty: no round has changed what all clients "
                "started from, or none was better on validation; train the run further, or choose "
                "another client"
            )


def whole_row(backbone: Backbone, row: Tensor, k: int) -> Tensor:
    """Bring a row ``(d,)``, the client's part and then the middle's, into the backbone's order."""
    inside = inside_middle(backbone, k)
    held, found = int((~inside).sum()), torch.empty_like(row)
    found[~inside], found[inside] = row[:held], row[held:]
    return found


def inside_middle(backbone: Backbone, k: int) -> Tensor:
    """Tell which numbers of a whole row are the middle's, ``(d,)`` bool."""
    middle = {id(p) for layer in list(backbone.layers)[k:-1] for p in layer.parameters()}
    parameters = Adapter(backbone.named_parameters()).parameters
    return torch.cat([torch.full((p.numel(),), id(p) in middle) for p in parameters])
