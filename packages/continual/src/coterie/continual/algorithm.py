"""F³CRec, Algorithm 2: the server half, for all methods and ablations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from coterie.continual.compiling import pays
from coterie.continual.messages import (
    END_BLOCK,
    EVALUATE,
    KEEP_BEST,
    START_BLOCK,
    UPDATE,
    EndedBlock,
    EvaluationTable,
    ItemTable,
    ItemUpdate,
    LookBack,
)
from coterie.continual.proxies import moving_average
from coterie.continual.settings import DISTILLING, Settings, resolve
from coterie.core.federation.selection import NO_ROUND, BestRound, Selecting
from coterie.core.metrics.clients import mean_of_known, worst_decile
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.card import Card
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.replies import FoldedReplies
from coterie.core.protocol.server import ServesItems
from coterie.core.protocol.uploads import Sum
from coterie.core.tensors.keys import Key


def knowledge_shift(old: Tensor, new: Tensor) -> Tensor:
    """φ_i = ||Q_old,i - Q_i||² / sqrt(d) (Eq. 8), ``(n_old,)``; both tables are ``(n_old, d)``."""
    return (old - new).square().sum(1) / old.shape[1] ** 0.5


def item_wise_weight(shift: Tensor, beta: float) -> Tensor:
    """γ_i = β / (1 + φ_i) (Eq. 9), ``(n_old,)``."""
    return beta / (1 + shift)


def temporal_mean(table: Tensor, old: Tensor, weight: Tensor | float) -> Tensor:
    """Blend old items with the previous block's rows; new items stay as aggregated (Eq. 13).

    Args:
        table: ``(n, d)`` pre-aggregated table Q_g'.
        old: ``(n_old, d)`` table of the previous block, n_old <= n.
        weight: γ, ``(n_old,)`` or one number for all (F³CRec w/o i.t.m).

    Example:
        >>> temporal_mean(torch.ones(2, 1), torch.zeros(1, 1), 0.25).flatten().tolist()
        [0.75, 1.0]
    """
    gamma = torch.as_tensor(weight, dtype=table.dtype).reshape(-1, 1)
    blended = (1 - gamma) * table[: old.shape[0]] + gamma * old
    return torch.cat([blended, table[old.shape[0] :]])


def _blended(table: Tensor, old: Tensor, beta: float) -> Tensor:
    """The same with the weights of Eq. 8 and 9, by a compiled loop."""
    from coterie.continual.blending_kernels import blend  # loads numba

    table, found = table.contiguous(), torch.empty_like(table)
    blend(table.numpy(), old.contiguous().numpy(), beta, found.numpy())
    return found


@dataclass(frozen=True)
class ServerState:
    """What the server knows.

    Attributes:
        items: ``(n, d)`` Q_g.
        best: the same at the block's best validation round.
        old: ``(n_old, d)`` Q_g at the end of the previous block; None in the base block.
        slow: ``(n_old, d)`` stability proxy of Q (SPP).
        fast: ``(n_old, d)`` plasticity proxy of Q (SPP).
        block: t.
        round: r within the block, rounds done.
        chosen: which round ``best`` is of, and its validation NDCG.
    """

    items: Tensor
    best: Tensor
    old: Tensor | None = None
    slow: Tensor | None = None
    fast: Tensor | None = None
    block: int = 0
    round: int = 0
    chosen: BestRound = NO_ROUND


class F3CRec(Selecting[ServerState], ServesItems[ServerState]):
    """Federated continual recommendation over a stream of blocks.

    Args:
        settings: with the reading's choices resolved.
        n_items: items known in each block, I^0, …, I^T.
    """

    averages = sums = True
    serves_all_alike = True

    def __init__(self, settings: Settings, n_items: Sequence[int]) -> None:
        self.settings, self.limits, self.n_items = settings, settings, n_items
        self.validation = settings.validation
        # Ties within five digits keep the earlier round.
        self.monitor = Monitor(f"eval/ndcg@{settings.top_k}", digits=5)
        self.dtype = getattr(torch, settings.engine.dtype)

    @property
    def sums_alike(self) -> bool:
        """All but Reg, whose pull moves the table and is no release that is clipped."""
        return self.settings.method != "reg"

    def begin(self, key: Key) -> ServerState:
        """Initialise Q_g^0 (line 1)."""
        items = self._fresh_items(key, 0, self.n_items[0])
        return ServerState(items, items)

    def start_block(self, state: ServerState, block: int, cohort: Cohort, key: Key) -> ServerState:
        """Carry Q over, add new items, enrol new users (lines 4 to 8, and 2 for block 0).

        What is carried over competes with the block's rounds.
        """
        cohort.enrol()  # lines 2 and 7: the clients draw Φ_u themselves
        if block == 0:
            return state
        past = self._past(state, block)
        if past is not None:
            cohort.ask(START_BLOCK, past)
        kept = state.best if self.settings.carry == "best" else state.items
        fresh = self._fresh_items(key, kept.shape[0], self.n_items[block])
        items = torch.cat([kept, fresh])  # lines 5 and 6
        state = ServerState(items, items, state.best, state.slow, state.fast, block)
        return self.opened(state, cohort)

    def round(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """One communication round (lines 10 to 19), then validation where it is due."""
        selected = cohort.sample(self.settings.participation, key.fold("sample"))  # line 10
        old = state.old if self.settings.method == "reg" else None
        down = ItemTable(state.items, old, state.round, state.block)
        replies = selected.ask(UPDATE, down, reduce=Sum())  # lines 11 to 13
        items = self.aggregated(state, replies)
        state = replace(state, items=items, round=state.round + 1)
        self._report_training(cohort, replies)
        return self.validated(state, cohort)

    def end_block(self, state: ServerState, cohort: Cohort, key: Key) -> ServerState:
        """Finish a block: clients carry their parameters on, the best round is tested."""
        state = self.settled(state, cohort)
        validation = cohort.ask(END_BLOCK, EndedBlock(state.best, state.block)).up
        if validation is not None:
            for name, values in validation.by_name((self.settings.top_k,)).items():
                cohort.journal.known(f"valid/block{state.block}/{name}", mean_of_known(values))
        return self._move_proxies(self.conclude(state, cohort, f"test/block{state.block}"))

    def measure(self, state: ServerState, cohort: Cohort, split: Split) -> None:
        """Let clients rank all items by this round's table, or to test by the best one."""
        testing, journal = split == "test", cohort.journal
        table = state.best if testing else state.items
        asked = cohort if testing else self.validators(cohort)
        reports = asked.ask(EVALUATE, EvaluationTable(table, split))
        if reports.up is None:  # nobody answered
            return
        for name, values in reports.up.by_name((self.settings.top_k,)).items():
            where = f"test/block{state.block}/{name}" if testing else f"eval/{name}"
            journal.known(where, mean_of_known(values))
            journal.per_client(f"test/{name}" if testing else where, reports.ids, values)
            if where == self.monitor.key:
                journal.known(f"{where}_worst10", worst_decile(values))

    def keep(self, state: ServerState, cohort: Cohort) -> ServerState:
        """Keep the round's table; the clients keep their parameters of it."""
        cohort.ask(KEEP_BEST, None)
        return replace(state, best=state.items)

    def serve(self, state: ServerState, user: int | None, cohort: Cohort) -> ItemTable:
        """Give the best round's item table."""
        return ItemTable(state.best)

    def aggregated(self, state: ServerState, replies: FoldedReplies[ItemUpdate]) -> Tensor:
        """Q_g from Q_g', the mean of the clients' tables (lines 14 to 19, Eq. 7)."""
        if (total := replies.total) is None:  # nobody answered
            return self.blended(state, state.items)
        change = total.items.sum() / len(replies)
        if state.old is not None and total.pull is not None:
            n_old = state.old.shape[0]
            change[:n_old] -= total.pull / len(replies) * (state.items[:n_old] - state.old)
        # A later block has fewer clients, so each counts for more in its mean than in the first.
        server_lr = 1.0 if state.block == 0 else self.settings.server_lr
        return self.blended(state, state.items + server_lr * change)

    def blended(self, state: ServerState, items: Tensor) -> Tensor:
        """Blend with the previous block's table, as the method does (lines 15 to 19)."""
        beta = self.settings.temporal_mean.beta
        if state.old is None:
            return items
        match self.settings.method:
            case "f3crec" | "f3crec-wo-cc" | "f3crec-wo-arm":
                if pays(self.settings, items):
                    return _blended(items, state.old, beta)
                shift = knowledge_shift(state.old, items[: state.old.shape[0]])
                return temporal_mean(items, state.old, item_wise_weight(shift, beta))
            case "f3crec-wo-itm":
                return temporal_mean(items, state.old, beta)
            case _:
                return items

    def _report_training(self, cohort: Cohort, replies: FoldedReplies[ItemUpdate]) -> None:
        if (total := replies.total) is None:
            return
        cohort.journal.scalar("fed/clients", len(replies))
        for name, value in (("fed/loss", total.loss), ("f3crec/replay_size", total.replayed)):
            if value is not None:
                cohort.journal.scalar(name, value / len(replies))

    def _past(self, state: ServerState, block: int) -> LookBack | None:
        """What clients need before they train on a new block; None where they are not asked."""
        if self.settings.method in DISTILLING and self.settings.distils:
            return LookBack(block, state.best)
        if self.settings.method == "spp":
            return LookBack(block, slow=state.slow, fast=state.fast)
        return LookBack(block) if self.settings.restart_private else None

    def _move_proxies(self, state: ServerState) -> ServerState:
        """S_t and P_t of the item table (SPP); rows of new items are copied."""
        if self.settings.method != "spp":
            return state
        slow = _move(state.slow, state.best, self.settings.spp.slow)
        fast = _move(state.fast, state.best, self.settings.spp.fast)
        return replace(state, slow=slow, fast=fast)

    def _fresh_items(self, key: Key, first: int, count: int) -> Tensor:
        """Rows N(0, init_std²) of the items [first, count), ``(count - first, d)``."""
        keys = key.fold("items").fold(torch.arange(first, count))
        std = self.settings.model.init_std
        return std * keys.normal(self.settings.model.dim, dtype=self.dtype)


def _move(proxy: Tensor | None, table: Tensor, momentum: float) -> Tensor:
    """Move a proxy of the item table towards ``table``; the first one is a copy."""
    if proxy is None:
        return table
    averaged = moving_average(proxy, table[: proxy.shape[0]], momentum)
    return torch.cat([averaged, table[proxy.shape[0] :]])


def make_server(card: Card, ids: Tensor, folder: Path | None = None) -> F3CRec:
    """Make the server half from the public card alone; it knows items, and nobody's data."""
    return F3CRec(resolve(card.read(Settings)), card.public["n_items"])
