"""The client half: an organisation trains its adapter on its users' histories."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.adapter import Adapter
from coterie.llm.backbone import read_backbone
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.examples import Examples, OwnData, thinned
from coterie.llm.item_counts import CountsItems, counts_together, kept_head
from coterie.llm.messages import (
    EVALUATE,
    FREEZE,
    KEEP,
    UPDATE,
    WEIGH,
    Adapters,
    Candidate,
    ClientState,
    OrganisationReport,
    StrengthReport,
    Strengths,
    TrainedAdapter,
)
from coterie.llm.own_counts import compare, own_counts
from coterie.llm.quality import MEASURES, measure_each, measure_users
from coterie.llm.readings import resolve
from coterie.llm.settings import USER_METHODS, Settings
from coterie.llm.split.channel import Diverged

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
        start: ``(d,)`` the adapter that all clients start from.
        head: what of an adapter stays with its client.
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
        self.start = self.adapter.row()
        self.head = kept_head(settings, backbone, self.adapter)
        self.fresh = tree.as_one(self.optimizer.begin({"row": self.start[None]}))

    def constants(self) -> Mapping[str, str]:
        """The digest of the backbone, which must be the server's."""
        return self.backbone.constants()

    def enrol(self, data: OwnData, key: Key) -> ClientState:
        """Start without anything learnt; the common adapter comes from the server."""
        head = self.head.part(self.start)
        kept = self.fresh if self.settings.train.keep_optimizer else None
        return ClientState(kept, head=head, best_head=head)

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
                self.load(self.head.joined(down.row, mine.best_head))
                catalogue = self.backbone.catalogue()
        except Diverged:
            catalogue = torch.full((1, 1), torch.nan)
        fresh, best = self.enrol(data, key), mine.best_head
        return None, replace(fresh, catalogue=catalogue, head=best, best_head=best)

    @KEEP
    def keep(
        self, down: None, mine: ClientState, data: OwnData, key: Key
    ) -> tuple[None, ClientState]:
        """Keep the head of the round that was the best on validation so far."""
        return None, replace(mine, best_head=mine.head)

    @WEIGH
    def weigh(
        self, down: Strengths, mine: ClientState, data: OwnData, key: Key
    ) -> tuple[StrengthReport, None]:
        """Rank for the validation with each strength of the client's own counts."""
        own = own_counts(data, "valid", self.backbone.n_items)
        scale = self.settings.expert.scale
        try:
            with self._session(data.id, training=False):
                self.load(self.head.joined(down.row, mine.head))
                found = measure_each(
                    lambda part: self.backbone.scores(part.history),
                    [scale * strength * own for strength in down.own],
                    data.valid,
                )
            recall, squares, _ = compare([one["recall@10"] for one in found])
        except Diverged:
            recall = squares = torch.full((len(down.own),), torch.inf).double()
        return StrengthReport(recall, squares, torch.tensor(len(data.valid))), None

    @EVALUATE
    def evaluate(
        self, down: Candidate, mine: ClientState, data: OwnData, key: Key
    ) -> tuple[OrganisationReport, None]:
        """Rank all items for the client's users, history left out (section 4.1.2)."""
        testing = down.split == "test"
        queries = data.test if testing else data.valid
        catalogue = mine.catalogue if down.stage > 1 else None
        row = self.head.joined(down.row, mine.best_head if testing else mine.head)
        row = self.tuned(row, catalogue, data, down.own)
        own = self.own_bias(down.own, data, down.split)
        try:
            with self._session(data.id, training=False):
                self.load(row, catalogue, own)
                values = measure_users(lambda part: self.backbone.scores(part.history), queries)
        except Diverged:
            values = {name: torch.full((len(queries),), torch.inf).double() for name in MEASURES}
        recall, ndcg = torch.stack([value.mean() for value in values.values()]).reshape(2, -1)
        return OrganisationReport(recall, ndcg, torch.tensor(len(queries))), None

    def tuned(
        self, row: Tensor, catalogue: Tensor | None, data: OwnData, own: float = 0.0
    ) -> Tensor:
        """Give what a client ranks with, ``(d,)``: in fedavg-tuned trained on, else the row.

        Batches are drawn anew by the run's seed and the client alone, so that whoever measures or
        recommends has the same.
        """
        if self.settings.method != "fedavg-tuned" or not self.settings.tuning.epochs:
            return row
        key = Key.from_seed(self.settings.seed).fold("tuning", data.id)
        batches = self._batches(data.train, key, self.settings.tuning.epochs)
        self.load(row, catalogue, self.own_bias(own, data, "valid"), training=True)
        return self._descended(row, batches, key, tree.as_stack(self.fresh))[0]

    def score(
        self,
        client: int,
        row: Tensor,
        history: Ragged,
        catalogue: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """Score all items after each of n histories with what a client holds, ``(n, n_items)``.

        The others are as in `load`.
        """
        with self._session(client, training=False):
            self.load(row, catalogue, own)
            return self.backbone.scores(history)

    def load(
        self,
        row: Tensor,
        catalogue: Tensor | None = None,
        own: Tensor | None = None,
        *,
        training: bool = False,
    ) -> None:
        """Make the backbone that of a client, with its row ``(d,)``, to score or be trained.

        Args:
            row: of the adapter.
            catalogue: ``(n_items, h)`` item embeddings that it keeps in stage 2.
            own: ``(n_items,)`` what its own counts add to an expert, see `Expert.own`.
            training: whether dropout is on.
        """
        self.adapter.load(row)
        if self.backbone.expert is not None:
            self.backbone.expert.own = None if own is None else own.to(row)
        if self.backbone.training != training:  # hundreds of modules: not for every client
            self.backbone.train(training)
        self.backbone.frozen_items = catalogue
        self.backbone.prepare()

    def own_bias(self, strength: float, data: OwnData, split: Split) -> Tensor | None:
        """What a client's own counts add to the expert, ``(n_items,)``; None without any."""
        if not strength:
            return None
        return strength * own_counts(data, split, self.backbone.n_items)

    def _trained(
        self, down: Adapters, mine: ClientState, data: OwnData, own: Key
    ) -> tuple[TrainedAdapter, ClientState]:
        """Train, as `update` tells; what is not finite in a split model raises `Diverged`."""
        examples, train = data.train, self.settings.train
        start, state = self.head.joined(down.row, mine.head), mine.optimizer or self.fresh
        with self._session(data.id, training=True, key=own.fold("middle")):
            counted = self.own_bias(down.own, data, "valid")
            self.load(start, mine.catalogue, counted, training=True)
            batches = self._batches(examples, own, train.epochs)
            row, state, total = self._descended(
                start, batches, own, tree.as_stack(state), self._strength(down)
            )
        mean = total / (len(examples) * train.epochs) if len(examples) else 0.0
        sent, head = self.head.shared(row), self.head.part(row)
        up = TrainedAdapter(sent, torch.tensor(mean), torch.tensor(len(examples)))
        kept = tree.as_one(state) if train.keep_optimizer else None
        return up, replace(mine, optimizer=kept, head=head)

    def _descended(
        self, start: Tensor, batches: list[Examples], own: Key, state: RowState, pull: float = 0.0
    ) -> tuple[Tensor, RowState, float]:
        """Make a step for each batch from a row that is loaded; row, optimizer, sum of losses.

        ``pull`` p adds p/2 ‖row - start‖² to the loss.
        """
        row, total = {"row": start[None]}, 0.0
        for number, batch in enumerate(batches):
            self.adapter.load(row["row"][0])
            with own.fold("dropout", number).torch_rng():
                loss = self.backbone.loss(batch)
                loss.backward()
            gradient = self.adapter.gradient()[None] + pull * (row["row"] - start)
            self.adapter.clear()
            row, state = self.optimizer.step(row, {"row": gradient}, state, self.settings.train.lr)
            if self.channel is not None:
                self.channel.step()  # the server's layers make the same step
            total += float(loss.detach()) * len(batch)
        return row["row"][0], state, total

    def _session(self, client: int, **how: Any) -> AbstractContextManager[None]:
        """Speak with the server's layers, if there are any, until the block ends."""
        return nullcontext() if self.channel is None else self.channel.session(client, **how)

    def _batches(self, examples: Examples, key: Key, epochs: int) -> list[Examples]:
        """Shuffled batches of all local epochs."""
        found = []
        for epoch in range(epochs if len(examples) else 0):
            found += shuffled(examples, self.settings, key, epoch)
        return found

    def _strength(self, down: Adapters) -> float:
        """μ of FedProx's μ/2 ‖R_c - R‖², λ/α_k of FedAMP's; 0 for the other methods."""
        return self.settings.train.mu if self.settings.method == "fedprox" else down.pull


def shuffled(examples: Examples, settings: Settings, key: Key, epoch: int) -> list[Examples]:
    """Shuffle examples for a local epoch, draw their histories, and cut them into batches.

    Args:
        examples: of a client.
        settings: of the run.
        key: of the client in the round.
        epoch: which, from 0.
    """
    of_epoch = key.fold("epoch", epoch)
    drawn = thinned(examples, settings.data.max_history, of_epoch.fold("history"))
    order = of_epoch.bits(torch.arange(len(examples))).argsort(stable=True)
    return [drawn.take(index) for index in order.split(settings.train.batch_size)]


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
    from coterie.llm.split.remote.channel import answers  # grpc and transformers are heavy
    from coterie.llm.split.remote.tokens import OWN_TOKENS

    answers(settings.split)
    backbone = read_backbone(settings, card.public, folder)
    from coterie.llm.halves import client_half

    channel = client_half(backbone, settings, folder / OWN_TOKENS)
    return Organisation(settings, backbone, channel, secret)
