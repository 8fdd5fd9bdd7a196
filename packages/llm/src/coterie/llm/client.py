"""The client half: an organisation trains its adapter on its users' histories."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.local_training.row_optimizer import RowAdam
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.adapter import Adapter
from coterie.llm.backbone import read_backbone
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.examples import Examples, OwnData
from coterie.llm.data.sequences import thinned
from coterie.llm.item_counts import CountsItems, counts_together
from coterie.llm.messages import (
    EVALUATE,
    FREEZE,
    UPDATE,
    Adapters,
    Candidate,
    ClientState,
    OrganisationReport,
    TrainedAdapter,
)
from coterie.llm.quality import MEASURES, measure_users
from coterie.llm.readings import resolve
from coterie.llm.settings.run import USER_METHODS, Settings
from coterie.llm.split.context import Diverged

if TYPE_CHECKING:
    from coterie.llm.split.channel import Channel


class Organisation(CountsItems):
    """A client of LLM-based federated recommendation, one at a time on the shared backbone.

    Args:
        settings: with the reading's choices resolved.
        backbone: frozen but for the adapter; shared by all clients, so nothing of it is private.
        channel: to the server's layers; None where the client holds all of them.
        secret: of all organisations, where they count together.

    Attributes:
        fresh: state of an optimizer before its first step, the same for all; no step changes it.
    """

    def __init__(
        self,
        settings: Settings,
        backbone: Backbone,
        channel: Channel | None = None,
        secret: CommonSecret | None = None,
    ) -> None:
        self.settings, self.backbone, self.channel = settings, backbone.eval(), channel
        self.secret = secret
        self.adapter = Adapter(backbone.named_parameters())
        self.optimizer = RowAdam()
        self.fresh = tree.as_one(self.optimizer.begin({"row": self.adapter.row()[None]}))

    def enrol(self, data: OwnData, key: Key) -> ClientState:
        """Start without anything learnt; the common adapter comes from the server."""
        return ClientState(self.fresh if self.settings.train.keep_optimizer else None)

    @UPDATE
    def update(
        self, down: Adapters, mine: ClientState, data: OwnData, key: Key
    ) -> tuple[TrainedAdapter, ClientState]:
        """Train the adapter for E epochs on the local data (Algorithm 1, lines 4 to 9)."""
        try:
            return self._trained(down, mine, data, key)
        except Diverged:  # where a whole model computes on, up to an answer that is refused
            self.adapter.clear()
            row, loss = torch.full_like(down.row, torch.nan), torch.tensor(torch.nan)
            return TrainedAdapter(row, loss, torch.tensor(len(data.train))), mine

    @FREEZE
    def freeze(
        self, down: Adapters, mine: ClientState, data: OwnData, key: Key
    ) -> tuple[None, ClientState]:
        """Begin stage 2: embed all items with the adapter received, and keep that for good."""
        try:
            with self._session(data.id, training=False):
                self.load(down.row)
                catalogue = self.backbone.catalogue()
        except Diverged:
            catalogue = torch.full((1, 1), torch.nan)
        return None, replace(self.enrol(data, key), catalogue=catalogue)

    @EVALUATE
    def evaluate(
        self, down: Candidate, mine: ClientState, data: OwnData, key: Key
    ) -> tuple[OrganisationReport, None]:
        """Rank all items for the client's users, history left out (section 4.1.2)."""
        testing = down.split == "test"
        queries = data.test if testing else data.valid
        try:
            with self._session(data.id, training=False):
                self.load(down.row, mine.catalogue if down.stage > 1 else None)
                values = measure_users(lambda part: self.backbone.scores(part.history), queries)
        except Diverged:
            values = {name: torch.full((len(queries),), torch.inf).double() for name in MEASURES}
        recall, ndcg = torch.stack([value.mean() for value in values.values()]).reshape(2, -1)
        return OrganisationReport(recall, ndcg, torch.tensor(len(queries))), None

    def score(
        self, client: int, row: Tensor, history: Ragged, catalogue: Tensor | None = None
    ) -> Tensor:
        """Score all items after each of n histories with what a client holds, ``(n, n_items)``.

        Row and catalogue are as in `load`.
        """
        with self._session(client, training=False):
            self.load(row, catalogue)
            return self.backbone.scores(history)

    def load(self, row: Tensor, catalogue: Tensor | None = None, *, training: bool = False) -> None:
        """Make the backbone that of a client, with its row ``(d,)``, to score or be trained.

        In stage 2 the client keeps item embeddings, ``(n_items, h)``, as its catalogue.
        """
        self.adapter.load(row)
        if self.backbone.training != training:  # hundreds of modules: not for every client
            self.backbone.train(training)
        self.backbone.frozen_items = catalogue
        self.backbone.prepare()

    def _trained(
        self, down: Adapters, mine: ClientState, data: OwnData, own: Key
    ) -> tuple[TrainedAdapter, ClientState]:
        """Train, as `update` tells; what is not finite in a split model raises `Diverged`."""
        examples, train = data.train, self.settings.train
        received, losses = down.row[None], []
        row, state = {"row": received}, tree.as_stack(mine.optimizer or self.fresh)
        with self._session(data.id, training=True, key=own.fold("middle")):
            self.load(down.row, mine.catalogue, training=True)
            for number, batch in enumerate(self._batches(examples, own)):
                self.adapter.load(row["row"][0])
                with own.fold("dropout", number).torch_rng():
                    loss = self.backbone.loss(batch)
                    loss.backward()
                gradient = self.adapter.gradient()[None] + self._pull(row["row"], received)
                self.adapter.clear()
                row, state = self.optimizer.step(row, {"row": gradient}, state, train.lr)
                if self.channel is not None:
                    self.channel.step()  # the server's layers make the same step
                losses.append(float(loss.detach()) * len(batch))
        mean = sum(losses) / (len(examples) * train.epochs) if len(examples) else 0.0
        up = TrainedAdapter(row["row"][0], torch.tensor(mean), torch.tensor(len(examples)))
        kept = tree.as_one(state) if train.keep_optimizer else None
        return up, replace(mine, optimizer=kept)

    def _session(self, client: int, **how: Any) -> AbstractContextManager[None]:
        """Speak with the server's layers, if there are any, until the block ends."""
        return nullcontext() if self.channel is None else self.channel.session(client, **how)

    def _batches(self, examples: Examples, key: Key) -> list[Examples]:
        """Shuffled batches of all local epochs."""
        train, found = self.settings.train, []
        for epoch in range(train.epochs if len(examples) else 0):
            of_epoch = key.fold("epoch", epoch)
            drawn = thinned(examples, self.settings.data.max_history, of_epoch.fold("history"))
            order = of_epoch.bits(torch.arange(len(examples))).argsort(stable=True)
            found += [drawn.take(index) for index in order.split(train.batch_size)]
        return found

    def _pull(self, row: Tensor, received: Tensor) -> Tensor:
        """Gradient of FedProx's μ/2 ‖R_c - R‖²; 0 for the other methods."""
        mu = self.settings.train.mu if self.settings.method == "fedprox" else 0.0
        return mu * (row - received)


def make_client(card: Card, folder: Path) -> Client[Any, Any]:
    """Make the client half from the public card and the client's own folder.

    The folder has the file `WEIGHTS` of `coterie.llm.backbone`, the same for all, and for a split
    model the client's token, `OWN_TOKENS` of `coterie.llm.split.remote.tokens`; where users are
    clients, `SECRET_FILE` of `coterie.core.protocol.common_secret` in its place.

    Raises:
        UserError: a file is missing or another one, or the server's half cannot be reached.
    """
    settings = resolve(card.read(Settings))
    if settings.method in USER_METHODS:
        from coterie.llm.baselines import user_client  # FedMF, LightFR, FedPerGNN

        secret = CommonSecret.read(folder)
        return user_client(settings, card.public["items"]["n_items"], secret)
    return organisation(settings, card, folder)


def organisation(settings: Settings, card: Card, folder: Path) -> Organisation:
    """Make the client half of an organisation, with the card's settings but for the split's way.

    Raises:
        UserError: as `make_client`.
    """
    secret = CommonSecret.read(folder) if counts_together(settings) else None
    if settings.split.k is None:
        backbone = read_backbone(settings, card.public, folder)
        return Organisation(settings, backbone, secret=secret)
    from coterie.llm.split.remote.reach import answers  # grpc and transformers are heavy
    from coterie.llm.split.remote.tokens import OWN_TOKENS

    answers(settings.split)
    backbone = read_backbone(settings, card.public, folder)
    from coterie.llm.halves import client_half

    channel = client_half(backbone, settings, folder / OWN_TOKENS)
    return Organisation(settings, backbone, channel, secret)
