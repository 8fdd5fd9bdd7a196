"""PPLR, Algorithm 1: the server half, for PPLR and the federated methods it is compared with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.cohort import Cohort, PerClient, Replies
from coterie.core.local_training.row_optimizer import RowAdam, RowState
from coterie.core.metrics.clients import imbalance
from coterie.core.protocol.server import Decision, Server
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.llm.messages import Adapters, Candidate, Split
from coterie.llm.mixing import (
    attention,
    dynamic_weights,
    mix,
    row_normalised,
    softened_losses,
    warm_up,
)
from coterie.llm.quality import MEASURES
from coterie.llm.settings.run import Settings
from coterie.llm.split.part import Part, given_back, lend

if TYPE_CHECKING:
    from coterie.llm.halves import Halves

ONE_MODEL = ("fedavg", "fedprox", "central")  # methods by which all clients have the same adapter


@dataclass(frozen=True)
class State:
    """What the server knows.

    Attributes:
        rows: ``(K, d)`` adapter R_c of every client; of a split model the part that the client
            holds comes first, then that of the server's layers.
        best: the same at the best validation round.
        optimizer: of the server's layers, K rows; None where there are none, or it starts anew in
            every round.
        round: t, rounds done.
        best_score: validation Recall@10 of ``best``.
        best_round: its round, from 1.
        stage: of fine-tuning, from 1.
        began: rounds done when it began.
        best_stage: that of ``best``.
    """

    rows: Tensor
    best: Tensor
    optimizer: RowState | None = None
    round: int = 0
    best_score: float = -1.0
    best_round: int = 0
    stage: int = 1
    began: int = 0
    best_stage: int = 1


@dataclass(frozen=True)
class Trained:
    """What the A clients that answered brought in a round.

    Attributes:
        ids: ``(A,)`` their numbers.
        rows: ``(A, d)`` adapters after local training.
        changes: ``(A, d)`` what it changed in them.
        losses: ``(A,)`` mean training losses L_c.
        sizes: ``(A,)`` int64, numbers of examples |D_c|.
        round: t, from 0.
        failed: who was asked and did not answer.
    """

    ids: Tensor
    rows: Tensor
    changes: Tensor
    losses: Tensor
    sizes: Tensor
    round: int
    failed: Collection[int] = ()


class PPLR(Server[State]):
    """Federated recommendation with one adapter a client on a shared frozen backbone.

    Args:
        settings: with the reading's choices resolved.
        n_clients: K.
        start: ``(d,)`` the adapter that all clients start from. With starts of their own the mean
            of two low-rank adapters would be the mean of two different bases.
        halves: of a split model: the layers R_{k+1} to R_{N-1} are in the server's own place. It
            borrows a client's part of them for every ask, and keeps nothing.
    """

    def __init__(
        self, settings: Settings, n_clients: int, start: Tensor, halves: Halves | None = None
    ) -> None:
        self.settings, self.n_clients, self.halves = settings, n_clients, halves
        self.held = start.numel()  # numbers of a row that the client holds
        self.start = start if halves is None else torch.cat([start, halves.start.to(start)])

    def begin(self, key: Key) -> State:
        """Give every client the common adapter."""
        rows = self.start.expand(self.n_clients, -1).clone()
        return State(rows, rows, self._fresh())

    def start_block(self, state: State, block: int, cohort: Cohort, key: Key) -> State:
        """Enrol the clients."""
        cohort.enrol()
        return state

    def round(self, state: State, cohort: Cohort, key: Key) -> State:
        """One communication round (Algorithm 1, lines 3 to 17), then validation."""
        if state.stage < self.stages and self._stage_over(state):
            state = self._next_stage(state, cohort)
        replies = self._train(state, self._drawn(cohort, key))  # lines 4 to 9
        if replies.ids.numel():  # somebody answered
            state = self._aggregate(state, replies, cohort)  # lines 11 to 16
        state = replace(state, round=state.round + 1)
        if self.stages > 1:
            cohort.journal.scalar("fed/stage", state.stage)
        return self._validate(state, cohort)

    def test(self, state: State, cohort: Cohort) -> None:
        """Test the best round on all clients."""
        self._measure(state.best, cohort, "test", state.best_stage)

    def end_block(self, state: State, cohort: Cohort, key: Key) -> State:
        """Test the best round."""
        self.test(state, cohort)
        cohort.journal.scalar("test/best_round", state.best_round)
        return state

    def served(self, state: State, client: int) -> Tensor:
        """Give what a client downloads to recommend, ``(1, d)``; its middle is made ready."""
        self._lend(torch.tensor([client]), state.best)
        return state.best[client : client + 1, : self.held]

    def stop(self, state: State, history: Sequence[dict[str, float]]) -> Decision:
        """End after T rounds or ``patience`` rounds without a better validation, in each stage."""
        last = state.stage >= self.stages
        return "block" if last and self._stage_over(state) else "go"

    def change_rounds(self, state: State, history: Sequence[dict[str, float]], rounds: int) -> None:
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

    def _stage_over(self, state: State) -> bool:
        """Whether the stage has had its rounds, or waited in vain for a better one."""
        chosen, first = self.settings, state.stage == 1
        patience = chosen.patience if first else chosen.train.patience_frozen
        waited = state.round - max(state.best_round, state.began)
        return waited >= patience or state.round - state.began >= chosen.rounds

    def _next_stage(self, state: State, cohort: Cohort) -> State:
        """Go back to the best adapters; every client embeds the items with its own, for good."""
        held = state.best[:, : self.held]
        self._lend(cohort.ids, state.best)
        rows = [Adapters(held[c : c + 1], state.round) for c in cohort.ids.tolist()]
        cohort.ask("freeze", PerClient(rows))
        self._count_crossed(cohort, "freeze")
        state = replace(state, rows=state.best, optimizer=self._fresh())
        return replace(state, stage=state.stage + 1, began=state.round)

    def _drawn(self, cohort: Cohort, key: Key) -> Cohort:
        """Draw the clients of a round."""
        if self.settings.method == "central":
            return cohort  # all data are the first one's
        return cohort.sample(self.settings.participation, key.fold("sample"))

    def _train(self, state: State, cohort: Cohort) -> Replies:
        """Let clients train their adapters; those that fail keep the ones they have."""
        held = state.rows[:, : self.held]
        self._lend(cohort.ids, state.rows, state.optimizer)
        rows = [Adapters(held[c : c + 1], state.round) for c in cohort.ids.tolist()]
        replies = cohort.ask("update", PerClient(rows))
        self._count_crossed(cohort, "update")
        return replies

    def _aggregate(self, state: State, replies: Replies, cohort: Cohort) -> State:
        """Mix the trained adapters, each client in its own way."""
        state, trained = self._trained(state, replies)
        self._report_training(cohort, trained)
        if not bool((trained.sizes > 0).any()):
            return state
        weights = self._weights(trained, cohort)  # lines 11 to 14, Eq. 2 to 5
        mixed = mix(trained.rows, weights)  # lines 15 and 16, from one snapshot
        return replace(state, rows=self._received(state.rows, trained, mixed))

    def _trained(self, state: State, replies: Replies) -> tuple[State, Trained]:
        """Put together what the clients sent and, of a split model, what the middle trained."""
        ids = replies.ids
        rows, losses, sizes = (
            torch.cat([getattr(up, name) for up in replies.up])
            for name in ("row", "loss", "examples")
        )
        if self.halves is not None:
            middle = given_back(self.halves.middle, ids.tolist())
            rows = torch.cat([rows, middle.rows.to(rows)], dim=1)
            if state.optimizer is not None:
                moved = tree.map_tensors(
                    lambda old, new: old.index_copy(0, ids, new.to(old)),
                    state.optimizer,
                    middle.optimizer,
                )
                state = replace(state, optimizer=moved)
        changes = rows - state.rows[ids]
        return state, Trained(ids, rows, changes, losses, sizes, state.round, replies.failed)

    def _received(self, rows: Tensor, trained: Trained, mixed: Tensor) -> Tensor:
        """Give the adapters of all clients after the mixed ones, ``(A, d)``, have been sent.

        The one mean of FedAvg goes to those who were not drawn too; who failed is behind by a
        round.
        """
        ids = trained.ids
        if self.settings.method in ONE_MODEL:
            ids = torch.tensor([c for c in range(self.n_clients) if c not in trained.failed])
            mixed = mixed if len(ids) == len(mixed) else mixed[:1].expand(len(ids), -1)
        return mixed if len(ids) == len(rows) else rows.index_copy(0, ids, mixed)

    def _weights(self, trained: Trained, cohort: Cohort) -> Tensor:
        """Aggregation weights of every client, ``(A, A)``, rows sum to 1."""
        method, how = self.settings.method, self.settings.mixing
        losses, sizes = trained.losses, trained.sizes
        everybody = torch.ones(len(sizes), len(sizes))
        if method == "local":
            return torch.eye(len(sizes))
        if method in ONE_MODEL:
            return row_normalised(everybody, sizes)
        compared = trained.changes if how.similarity_on == "updates" else trained.rows
        s = attention(compared, how.similarity or "shifted")  # line 12, Eq. 2 and 3
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

    def _validate(self, state: State, cohort: Cohort) -> State:
        score = self._measure(state.rows, cohort, "valid", state.stage)
        if score > state.best_score:
            state = replace(state, best=state.rows, best_stage=state.stage)
            return replace(state, best_score=score, best_round=state.round)
        return state

    def _measure(self, rows: Tensor, cohort: Cohort, split: Split, stage: int) -> float:
        """Enter the quality on all clients into the journal; return the overall Recall@10."""
        held = rows[:, : self.held]
        self._lend(cohort.ids, rows)
        asked = [Candidate(held[c : c + 1], split, stage) for c in cohort.ids.tolist()]
        replies = cohort.ask("evaluate", PerClient(asked))
        self._count_crossed(cohort, "evaluate")
        if not replies.ids.numel():
            return -1.0
        prefix, journal = "test" if split == "test" else "eval", cohort.journal
        users = torch.cat([up.users for up in replies.up])
        found = {}
        for name in MEASURES:
            values = torch.cat([getattr(up, name.replace("@", "")) for up in replies.up])
            found[name] = _weighted_mean(values, users)
            journal.scalar(f"{prefix}/{name}", found[name])
            journal.per_client(f"{prefix}/{name}", replies.ids, values)
            if name == "recall@10":
                inequality = imbalance(values)
        journal.scalar("pplr/imbalance" if split == "valid" else "test/imbalance", inequality)
        return found["recall@10"]

    def _fresh(self) -> RowState | None:
        """State of the optimizer of the server's layers before its first step, if it is kept."""
        if self.halves is None or not self.settings.train.keep_optimizer:
            return None
        return RowAdam().begin({"row": self.halves.start.repeat(self.n_clients, 1)})

    def _lend(self, ids: Tensor, rows: Tensor, optimizer: RowState | None = None) -> None:
        """Lend the server's layers the parts of ``rows``, ``(K, d)``, that these clients lack."""
        if self.halves is not None:
            part = Part(rows[:, self.held :], optimizer)
            lend(self.halves.middle, ids.tolist(), tree.take(part, ids))

    def _count_crossed(self, cohort: Cohort, step: str) -> None:
        """Enter what passed between the halves into the ledger.

        So is what coordinator and middle lend one another, where it crosses to another machine.
        """
        if self.halves is None:
            return
        for way, field, messages, size in self.halves.channel.traffic.drain():
            cohort.ledger.crossed(step, way, field, messages, size)
        for way, field, messages, size in self.halves.lent.drain() if self.halves.lent else ():
            cohort.ledger.crossed("lend", way, field, messages, size)

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
