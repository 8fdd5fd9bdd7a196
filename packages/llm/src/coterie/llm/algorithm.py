"""PPLR, Algorithm 1: the server half, for PPLR and the federated methods it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.selection import Selecting
from coterie.core.methods.fedamp import messages
from coterie.core.metrics.clients import imbalance
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.card import Card
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import PerClient
from coterie.core.protocol.replies import ListReplies
from coterie.core.protocol.server import Decision, Server
from coterie.core.tensors.keys import Key
from coterie.llm.adapter import Adapter
from coterie.llm.backbone import halves_of, read_backbone
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.examples import Period
from coterie.llm.item_counts import CountedBias, ask_counts, counted_bias, kept_head
from coterie.llm.messages import (
    EVALUATE,
    FREEZE,
    KEEP,
    UPDATE,
    Adapters,
    Candidate,
    TrainedAdapter,
)
from coterie.llm.mixing import (
    Mixing,
    attention,
    dynamic_weights,
    inner_products,
    mix,
    received,
    row_normalised,
    softened_losses,
    warm_up,
)
from coterie.llm.own_counts import ask_strength
from coterie.llm.quality import LENGTHS, MEASURES
from coterie.llm.readings import resolve
from coterie.llm.settings import USER_METHODS, Settings
from coterie.llm.split.part import Kept
from coterie.llm.state import ServerState, Trained

if TYPE_CHECKING:
    from coterie.llm.halves import Halves

# Methods by which all clients get the same adapter, and by which each keeps what it trained.
ONE_MODEL = ("fedavg", "fedprox", "fedavg-tuned", "fedavg-head", "central")
OWN_MODEL = ("local", "fedamp")


class PPLR(Selecting[ServerState]):
    """Federated recommendation with one adapter a client on a shared frozen backbone.

    Args:
        settings: with the reading's choices resolved.
        n_clients: K.
        start: ``(d,)`` the adapter that all clients start from, less what they keep to themselves.
            With starts of their own the mean of two low-rank adapters would be the mean of two
            different bases.
        halves: of a split model: the layers R_{k+1} to R_{N-1} are in the server's own place,
            which trains and keeps all clients' parts of them. What is decided here needs their
            inner products alone.
        bias: of the expert, where it counts the interactions of everybody.
        alike: digests of what clients must have as the server has it, see `Backbone.constants`.
    """

    monitor = Monitor("eval/recall@10")

    def __init__(
        self,
        settings: Settings,
        n_clients: int,
        start: Tensor,
        halves: Halves | None = None,
        bias: CountedBias | None = None,
        alike: Mapping[str, str] | None = None,
    ) -> None:
        self.settings, self.limits = settings, settings
        self.n_clients, self.halves, self.bias = n_clients, halves, bias
        self.start, self.alike = start, alike or {}

    def constants(self) -> Mapping[str, str]:
        """The digest of the backbone, which must be the clients'."""
        return self.alike

    def begin(self, key: Key) -> ServerState:
        """Give every client the common adapter."""
        rows = self.start.expand(self.n_clients, -1).clone()
        middle = None if self.halves is None else self.halves.layers.begin()
        silent = torch.zeros(self.n_clients, dtype=torch.bool)
        return ServerState(rows, rows, middle=middle, best_middle=middle, silent=silent)

    def start_block(self, state: ServerState, block: int, cohort: Cohort, key: Key) -> ServerState:
        """Enrol the clients, count with them, and measure the backbone as it is."""
        cohort.enrol()
        state = self._weighed(self._counted(state, cohort, "train"), cohort)
        return self.opened(state, cohort)

    def round(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """One communication round (Algorithm 1, lines 3 to 17), then validation."""
        if state.stage < self.stages and self._stage_over(state):
            state = self._next_stage(state, cohort)
        replies = self._train(state, self._drawn(cohort, key))  # lines 4 to 9
        if replies.ids.numel():  # somebody answered
            state = self._aggregate(state, replies, cohort)  # lines 11 to 16
        state = replace(state, round=state.round + 1)
        if self.stages > 1:
            cohort.journal.scalar("fed/stage", state.stage)
        return self.validated(state, cohort)

    def end_block(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """Count what came since, and test the best round."""
        state = self.settled(state, cohort)
        return self.conclude(self._counted(state, cohort, "newer"), cohort)

    def served(self, state: ServerState, client: int) -> Tensor:
        """Give what a client downloads to recommend, ``(d,)``; its middle is made ready."""
        self._use(state.best_middle)
        return state.best[client]

    def stop(self, state: ServerState, history: Sequence[dict[str, float]]) -> Decision:
        """End after T rounds or ``patience`` rounds without a better validation, in each stage."""
        last = state.stage >= self.stages
        return "block" if last and self._stage_over(state) else "go"

    def change_rounds(
        self, state: ServerState, history: Sequence[dict[str, float]], rounds: int
    ) -> None:
        """Refuse another number from stage 2 on: ``rounds`` is of each stage, the first is over.

        Raises:
            UserError: it is refused.
        """
        if state.stage > 1:
            raise UserError("its first stage of fine-tuning had another number")
        super().change_rounds(state, history, rounds)

    @property
    def stages(self) -> int:
        """Stages of fine-tuning."""
        return self.settings.train.stages or 1

    def _stage_over(self, state: ServerState) -> bool:
        """Whether the stage has had its rounds, or waited in vain for a better one."""
        chosen, first = self.settings, state.stage == 1
        patience = chosen.patience if first else chosen.train.patience_frozen
        return state.chosen.over(state.round, chosen.rounds, patience, since=state.began)

    def _next_stage(self, state: ServerState, cohort: Cohort) -> ServerState:
        """Go back to the best adapters; every client embeds the items with its own, for good."""
        self._use(state.best_middle)
        rows = {c: Adapters(state.best[c], state.round) for c in cohort.ids.tolist()}
        cohort.ask(FREEZE, PerClient(rows))
        self._count_crossed(cohort, "freeze")
        middle = state.best_middle
        if self.halves is not None and middle is not None:
            middle = self.halves.layers.anew(middle)
        state = replace(state, rows=state.best, middle=middle)
        return replace(state, stage=state.stage + 1, began=state.round)

    def _drawn(self, cohort: Cohort, key: Key) -> Cohort:
        """Draw the clients of a round."""
        if self.settings.method == "central":
            return cohort  # all data are the first one's
        return cohort.sample(self.settings.participation, key.fold("sample"))

    def _train(self, state: ServerState, cohort: Cohort) -> ListReplies[TrainedAdapter]:
        """Let clients train their adapters; those that fail keep the ones they have."""
        self._use(state.middle)
        rows, pull = self._sent(state, cohort)
        asked = {c: Adapters(rows[c], state.round, pull, state.own) for c in cohort.ids.tolist()}
        replies = cohort.ask(UPDATE, PerClient(asked))
        self._count_crossed(cohort, "update")
        return replies

    def _sent(self, state: ServerState, cohort: Cohort) -> tuple[Tensor, float]:
        """What clients train on, ``(K, d)``, and how near to it they stay.

        In FedAMP these are the mixtures u_c of the clients' own adapters, which it keeps.
        """
        if self.settings.method != "fedamp" or state.silent is None:
            return state.rows, 0.0
        found = messages(state.rows, self.settings.fedamp, state.silent)
        for name in ("alpha", "sigma", "distance"):
            cohort.journal.scalar(f"fed/{name}", getattr(found, name))
        cohort.journal.scalar("fed/own_weight", found.weights.diagonal().mean())
        return mix(state.rows, found.weights), found.pull

    def _aggregate(
        self, state: ServerState, replies: ListReplies[TrainedAdapter], cohort: Cohort
    ) -> ServerState:
        """Mix the trained adapters, each client in its own way."""
        trained = self._trained(state, replies)
        self._report_training(cohort, trained)
        if state.silent is not None:
            silent = state.silent.index_copy(0, trained.ids, trained.sizes == 0)
            state = replace(state, silent=silent)
        if not bool((trained.sizes > 0).any()):
            return state
        weights = self._weights(trained, cohort)  # lines 11 to 14, Eq. 2 to 5
        how = Mixing(trained.ids, self._receivers(trained), weights.double())
        rows = received(state.rows, trained.rows, how)  # lines 15 and 16, from one snapshot
        return replace(state, rows=rows, middle=self._mixed_there(state, how, cohort))

    def _trained(self, state: ServerState, replies: ListReplies[TrainedAdapter]) -> Trained:
        """Put together what the clients sent."""
        ids, ups = replies.ids, replies.ups.values()
        rows = torch.stack([up.row for up in ups])
        losses = torch.stack([up.loss for up in ups])
        sizes = torch.stack([up.examples for up in ups])
        changes, failed = rows - state.rows[ids], frozenset(replies.failed)
        return Trained(ids, rows, changes, losses, sizes, state.round, failed)

    def _receivers(self, trained: Trained) -> Tensor:
        """Who gets what was mixed.

        The one mean of FedAvg goes to those who were not drawn too; who failed is behind by a
        round.
        """
        if self.settings.method not in ONE_MODEL:
            return trained.ids
        return torch.tensor([c for c in range(self.n_clients) if c not in trained.failed])

    def _mixed_there(self, state: ServerState, how: Mixing, cohort: Cohort) -> Kept | None:
        """Let the server's layers mix their part by the same weights."""
        if self.halves is None or state.middle is None or state.best_middle is None:
            return None
        every = self.settings.run.checkpoint_every
        made = self.halves.layers.mix(
            state.middle,
            how,
            state.round + 1,
            floor=state.round // every * every,
            best=state.best_middle.number,
        )
        self._count_crossed(cohort, "mix")
        return made

    def _weights(self, trained: Trained, cohort: Cohort) -> Tensor:
        """Aggregation weights of every client, ``(A, A)``, rows sum to 1."""
        method, how = self.settings.method, self.settings.mixing
        losses, sizes = trained.losses, trained.sizes
        everybody = torch.ones(len(sizes), len(sizes))
        if method in OWN_MODEL:
            return torch.eye(len(sizes))
        if method in ONE_MODEL:
            return row_normalised(everybody, sizes)
        gram = self._inner_products(trained, changes=how.similarity_on == "updates")
        s = attention(gram, how.similarity or "shifted")  # line 12, Eq. 2 and 3
        p = softened_losses(losses.where(sizes > 0, -torch.inf), how.tau)
        exponent = how.exponent or "paper"
        w = warm_up(p, trained.round, how.alpha, how.beta, exponent)  # line 13, Eq. 4
        self._report_mixing(cohort, trained.ids, s, p, w)
        if method == "pplr-heating":
            s = everybody
        if method == "pplr-attention":
            w = torch.ones_like(w)
        weights = dynamic_weights(s * (sizes > 0), w)  # Eq. 5; who has no data teaches nobody
        return row_normalised(weights, sizes if how.size_weighted else None)

    def keep(self, state: ServerState, cohort: Cohort) -> ServerState:
        """Keep the round's adapters, and let clients keep what they do not send of them."""
        if self.settings.keeps:
            cohort.ask(KEEP, None)
        return replace(state, best=state.rows, best_middle=state.middle, best_stage=state.stage)

    def measure(self, state: ServerState, cohort: Cohort, split: Split) -> None:
        """Let all clients rank all items by this round's adapters, or to test by the best ones."""
        testing, journal = split == "test", cohort.journal
        rows, stage = (state.best, state.best_stage) if testing else (state.rows, state.stage)
        self._use(state.best_middle if testing else state.middle)
        asked = {c: Candidate(rows[c], split, stage, state.own) for c in cohort.ids.tolist()}
        replies = cohort.ask(EVALUATE, PerClient(asked))
        self._count_crossed(cohort, "evaluate")
        if not replies.ids.numel():
            return
        where = "test" if testing else "eval"
        users = torch.stack([up.users for up in replies.ups.values()])
        reports = [up.by_name(LENGTHS) for up in replies.ups.values()]
        for name in MEASURES:
            values = torch.stack([one[name] for one in reports])
            journal.scalar(f"{where}/{name}", _weighted_mean(values, users))
            journal.per_client(f"{where}/{name}", replies.ids, values)
            if f"eval/{name}" == self.monitor.key:
                inequality = "test/imbalance" if testing else "pplr/imbalance"
                journal.scalar(inequality, imbalance(values))

    def _inner_products(self, trained: Trained, *, changes: bool) -> Tensor:
        """Of the adapters that clients trained, ``(A, A)``; those of both halves add up."""
        found = inner_products(trained.changes if changes else trained.rows)
        if self.halves is not None:
            found += self.halves.layers.gram(trained.ids, changes).to(found)
        return found

    def _counted(self, state: ServerState, cohort: Cohort, period: Period) -> ServerState:
        """Let the bias of all adapters count what the clients' users had in a period too."""
        if self.bias is None:
            return state
        before = self.bias.public if state.counts is None else state.counts
        counts = ask_counts(cohort, self.bias.known(state.counts, period), period)
        rows, best = (self.bias.moved(part, before, counts) for part in (state.rows, state.best))
        return replace(state, rows=rows, best=best, counts=counts)

    def _weighed(self, state: ServerState, cohort: Cohort) -> ServerState:
        """Say how strongly clients' own counts count, if they do."""
        expert = self.settings.expert
        if not expert.counts_own:
            return state
        if expert.own is not None:
            return replace(state, own=expert.own)
        self._use(state.middle)
        own = ask_strength(cohort, state.rows)
        self._count_crossed(cohort, "weigh")
        return replace(state, own=own)

    def _use(self, middle: Kept | None) -> None:
        """Let the server's layers use what a round made, for what is asked next."""
        if self.halves is not None and middle is not None:
            self.halves.layers.use(middle)

    def _count_crossed(self, cohort: Cohort, step: str) -> None:
        """Enter what passed between the halves into the ledger.

        So is what the coordinator and the server's layers say to one another elsewhere.
        """
        if self.halves is None:
            return
        for way, field, count, size in self.halves.channel.traffic.drain():
            cohort.crossed(step, way, field, count, size)
        for way, field, count, size in self.halves.said.drain() if self.halves.said else ():
            cohort.crossed("mix", way, field, count, size)

    def _report_training(self, cohort: Cohort, trained: Trained) -> None:
        journal, losses = cohort.journal, trained.losses
        journal.scalar("fed/clients", trained.ids.numel())
        journal.scalar("fed/loss", _weighted_mean(losses.double(), trained.sizes))
        journal.per_client("fed/loss", trained.ids, losses)

    def _report_mixing(self, cohort: Cohort, ids: Tensor, s: Tensor, p: Tensor, w: Tensor) -> None:
        """Show what the strategy does: s to the peers on average, p and w of every client."""
        peers = max(len(ids) - 1, 1)
        to_peers = (s.sum(1) - s.diagonal()) / peers
        for name, values in (("similarity", to_peers), ("difficulty", p), ("warmup", w)):
            cohort.journal.scalar(f"pplr/{name}", values.mean())
            cohort.journal.per_client(f"pplr/{name}", ids, values)


def _weighted_mean(values: Tensor, weights: Tensor) -> float:
    """Mean over clients with a value; NaN without any."""
    known = ~values.isnan() & (weights > 0)
    total = weights[known].sum()
    return float((values[known] * weights[known]).sum() / total) if total else float("nan")


def make_server(card: Card, ids: Tensor, folder: Path) -> Server[Any]:
    """Make the server half from the public card, the clients' ids and the server's own folder.

    The folder has the file `WEIGHTS`, of which the server needs what all clients start from.

    Raises:
        UserError: the file is missing or another one.
    """
    settings = resolve(card.read(Settings))
    if settings.method in USER_METHODS:
        from coterie.llm.baselines import user_server  # FedMF, LightFR, FedPerGNN

        return user_server(settings, card.public["items"]["n_items"])
    backbone = read_backbone(settings, card.public, folder)
    halves = halves_of(backbone, settings)
    adapter = Adapter(backbone.named_parameters())
    head = kept_head(settings, backbone, adapter)
    start = head.shared(adapter.row())
    bias = counted_bias(settings, adapter, Catalogue(**card.public["items"]), head)
    return PPLR(settings, ids.numel(), start, halves, bias, backbone.constants())
