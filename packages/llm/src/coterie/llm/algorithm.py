"""PPLR, Algorithm 1: the server half, for PPLR and the federated methods it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.selection import NO_ROUND, BestRound, Selecting
from coterie.core.metrics.clients import imbalance
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.cohort import Cohort, PerClient
from coterie.core.protocol.replies import ListReplies
from coterie.core.protocol.server import Decision
from coterie.core.tensors.keys import Key
from coterie.llm.messages import (
    EVALUATE,
    FREEZE,
    UPDATE,
    Adapters,
    Candidate,
    TrainedAdapter,
)
from coterie.llm.mixing import (
    attention,
    dynamic_weights,
    mix,
    row_normalised,
    softened_losses,
    warm_up,
)
from coterie.llm.quality import LENGTHS, MEASURES
from coterie.llm.settings import Settings

if TYPE_CHECKING:
    from coterie.llm.split.halves import Halves

ONE_MODEL = ("fedavg", "fedprox", "central")  # methods by which all clients have the same adapter


@dataclass(frozen=True)
class State:
    """What the server knows.

    Attributes:
        rows: ``(K, d)`` adapter R_c of every client.
        best: the same at the best validation round.
        round: t, rounds done.
        chosen: which round ``best`` is of, and its validation Recall@10.
        middle: what the checkpoint holds of the server's layers, in a split model.
        stage: of fine-tuning, from 1.
        began: rounds done when it began.
        best_stage: that of ``best``.
    """

    rows: Tensor
    best: Tensor
    round: int = 0
    chosen: BestRound = NO_ROUND
    middle: Any = None
    stage: int = 1
    began: int = 0
    best_stage: int = 1


@dataclass(frozen=True)
class Trained:
    """What the clients that answered brought in a round.

    Attributes:
        ids: ``(A,)`` their numbers.
        rows: ``(A, d)`` adapters after local training.
        changes: ``(A, d)`` what it changed in them.
        losses: ``(A,)`` mean training losses L_c.
        sizes: ``(A,)`` int64, numbers of examples |D_c|.
        round: t, from 0.
    """

    ids: Tensor
    rows: Tensor
    changes: Tensor
    losses: Tensor
    sizes: Tensor
    round: int


class PPLR(Selecting[State]):
    """Federated recommendation with one adapter a client on a shared frozen backbone.

    Args:
        settings: with the reading's choices resolved.
        n_clients: K.
        start: ``(d,)`` the adapter that all clients start from. With starts of their own the mean
            of two low-rank adapters would be the mean of two different bases.
        halves: of a split model. The server then holds the layers R_{k+1} to R_{N-1} and trains
            them in its own place; in a row they come after what the client holds.
    """

    monitor = Monitor("eval/recall@10")

    def __init__(
        self, settings: Settings, n_clients: int, start: Tensor, halves: Halves | None = None
    ) -> None:
        self.settings, self.limits = settings, settings
        self.n_clients, self.halves = n_clients, halves
        self.held = start.numel()  # numbers of a row that the client holds
        self.start = start if halves is None else torch.cat([start, halves.start.to(start)])

    def begin(self, key: Key) -> State:
        """Give every client the common adapter."""
        rows = self.start.expand(self.n_clients, -1).clone()
        return State(rows, rows)

    def start_block(self, state: State, block: int, cohort: Cohort, key: Key) -> State:
        """Enrol the clients."""
        cohort.enrol()
        return state

    def round(self, state: State, cohort: Cohort, key: Key) -> State:
        """One communication round, then validation."""
        self._restore(state)
        if state.stage < self.stages and self._stage_over(state):
            state = self._next_stage(state, cohort)
        replies = self._train(state, self._drawn(cohort, key))  # lines 4 to 9
        state = self._aggregate(state, replies, cohort)
        state = replace(state, round=state.round + 1)
        if self.stages > 1:
            cohort.journal.scalar("fed/stage", state.stage)
        return self._checkpointed(self.validated(state, cohort))

    def test(self, state: State, cohort: Cohort) -> None:
        """Test the best round on all clients."""
        self._restore(state)
        super().test(state, cohort)

    def served(self, state: State, client: int) -> Tensor:
        """Give what a client downloads to recommend, ``(d,)``; its middle is made ready."""
        self._restore(state)
        return state.best[client, : self.held]

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
        return state.chosen.over(state.round, chosen.rounds, patience, since=state.began)

    def _next_stage(self, state: State, cohort: Cohort) -> State:
        """Go back to the best adapters; every client embeds the items with its own, for good."""
        held, last = state.best[:, : self.held], state.round - 1
        if self.halves is not None and state.chosen.round < state.round:
            # The last round is committed again, with other rows.
            self.halves.rounds.begin(last)
            ids = range(self.n_clients)
            self.halves.rounds.commit(last, state.best[:, self.held :], list(ids))
        rows = {c: Adapters(held[c], state.round) for c in cohort.ids.tolist()}
        cohort.ask(FREEZE, PerClient(rows))
        self._count_crossed(cohort, "freeze")
        return replace(state, rows=state.best, stage=state.stage + 1, began=state.round)

    def _drawn(self, cohort: Cohort, key: Key) -> Cohort:
        """Draw the clients of a round."""
        if self.settings.method == "central":
            return cohort  # all data are the first one's
        return cohort.sample(self.settings.participation, key.fold("sample"))

    def _train(self, state: State, cohort: Cohort) -> ListReplies[TrainedAdapter]:
        """Let clients train their adapters; those that fail keep the ones they have."""
        if self.halves is not None:
            self.halves.rounds.begin(state.round)
            if not state.round:
                self.halves.rounds.keep_best()  # the start, until a round can be measured
        held = state.rows[:, : self.held]
        rows = {c: Adapters(held[c], state.round) for c in cohort.ids.tolist()}
        replies = cohort.ask(UPDATE, PerClient(rows))
        self._count_crossed(cohort, "update")
        return replies

    def _aggregate(
        self, state: State, replies: ListReplies[TrainedAdapter], cohort: Cohort
    ) -> State:
        """Mix the trained adapters, each client in its own way (lines 11 to 16)."""
        rows, receivers = state.rows, replies.ids
        if replies.ids.numel():  # somebody answered
            trained = self._trained(state, replies)
            self._report_training(cohort, trained)
            if bool((trained.sizes > 0).any()):
                mixed = mix(trained.rows, self._weights(trained, cohort))  # from one snapshot
                if self.settings.method in ONE_MODEL:
                    receivers, mixed = self._everybody(replies, mixed)
                whole = len(receivers) == len(rows)
                rows = mixed if whole else rows.index_copy(0, receivers, mixed)
        if self.halves is not None:
            middle = rows[receivers, self.held :]
            self.halves.rounds.commit(state.round, middle, receivers.tolist())
        return replace(state, rows=rows)

    def _everybody(
        self, replies: ListReplies[TrainedAdapter], mixed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Give the one mean to those who were not drawn too; who failed is behind by a round."""
        ids = [c for c in range(self.n_clients) if c not in replies.failed]
        if len(ids) > len(mixed):
            mixed = mixed[:1].expand(len(ids), -1)
        return torch.tensor(ids), mixed

    def _trained(self, state: State, replies: ListReplies[TrainedAdapter]) -> Trained:
        """Put together what the clients sent and, of a split model, what the middle trained."""
        ids, ups = replies.ids, replies.ups.values()
        rows = torch.stack([up.row for up in ups])
        losses = torch.stack([up.loss for up in ups])
        sizes = torch.stack([up.examples for up in ups])
        if self.halves is not None:
            middle = self.halves.rounds.trained(ids.tolist())
            rows = torch.cat([rows, middle.to(rows)], dim=1)
        return Trained(ids, rows, rows - state.rows[ids], losses, sizes, state.round)

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

    def keep(self, state: State, cohort: Cohort) -> State:
        """Keep the round's adapters."""
        if self.halves is not None:
            self.halves.rounds.keep_best()
        return replace(state, best=state.rows, best_stage=state.stage)

    def measure(self, state: State, cohort: Cohort, split: Split) -> None:
        """Let all clients rank all items by this round's adapters, or to test by the best ones."""
        testing, journal = split == "test", cohort.journal
        rows, stage = (state.best, state.best_stage) if testing else (state.rows, state.stage)
        held = rows[:, : self.held]
        asked = {c: Candidate(held[c], split, stage) for c in cohort.ids.tolist()}
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

    def _restore(self, state: State) -> None:
        """Bring the server's layers, after a restart, to where the checkpoint stands."""
        if self.halves is None or state.middle is None:
            return
        if self.halves.rounds.round != state.round - 1:
            self.halves.rounds.load_plain(state.middle)

    def _checkpointed(self, state: State) -> State:
        return (
            state if self.halves is None else replace(state, middle=self.halves.rounds.to_plain())
        )

    def _count_crossed(self, cohort: Cohort, step: str) -> None:
        """Enter activations and gradients between the halves into the ledger."""
        for way, field, messages, size in (
            self.halves.channel.traffic.drain() if self.halves else ()
        ):
            cohort.crossed(step, way, field, messages, size)

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
