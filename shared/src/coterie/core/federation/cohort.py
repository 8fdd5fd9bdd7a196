"""A cohort of clients, and the transaction by which the server asks them for a step."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.folds import Fold
from coterie.core.federation.guard import guard
from coterie.core.federation.journal import Journal
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.client import Client, ClientData
from coterie.core.protocol.messages import Down, Up
from coterie.core.protocol.middleware import Middleware
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass
class Replies:
    """What a cohort answered.

    Attributes:
        ids: ``(A,)`` ascending, the clients whose answer counts.
        failed: client id -> why its answer was refused or left out.
        up: the uploads in the order of ``ids``, stacked, or a list in the list form; None when
            they were folded.
        total: the folded sum of the uploads; None when they were kept.
    """

    ids: Tensor
    failed: dict[int, str]
    up: Any = None
    total: Any = None

    def mean(self, name: str) -> Tensor:
        """Mean of one folded field over the accepted clients (FedAvg with equal weights)."""
        return self.total[name] / max(self.ids.numel(), 1)


@dataclass(frozen=True)
class PerClient:
    """Messages that differ from client to client, for `Cohort.ask` in place of one for all.

    Attributes:
        message: a `Down` stacked over the cohort, or a list with one for each client.
    """

    message: Any

    def take(self, index: Tensor) -> Any:
        """The messages for the clients at the positions ``index``, ``(K,)`` int64."""
        if isinstance(self.message, list):
            (place,) = index.tolist()
            return self.message[place]
        return tree.take(self.message, index)


WORKING_MEMORY = 32 << 20
"""Bytes that a chunk may take by default; measured, larger chunks are hardly faster."""


@dataclass(frozen=True)
class Cohort:
    """Clients that take part, with everything an in-process engine needs to run them.

    Clients run stacked, a chunk at a time; a client half with ``max_chunk = 1`` runs in the list
    form: one after the other, each with shapes of its own.

    Attributes:
        client: the client half.
        ids: ``(R,)`` ascending client ids.
        data: their local data, aligned with ``ids``.
        store: private state of all clients.
        secret: root key of the clients' own randomness; the server half never sees it.
        when: coordinates of the round, folded into every client key.
        chunk: clients per stacked call; None = as many as fit into ``WORKING_MEMORY``.
        middleware: what uploads pass on their way out (clipping, noise).
    """

    client: Client[Any]
    ids: Tensor
    data: Any
    store: PrivateStore[Any]
    secret: Key
    when: tuple[int, ...]
    ledger: Ledger
    journal: Journal
    chunk: int | None = None
    middleware: tuple[Middleware, ...] = ()
    _asked: dict[str, Iterator[int]] = field(
        default_factory=lambda: defaultdict(itertools.count), repr=False
    )

    def __len__(self) -> int:
        return self.ids.numel()

    def sample(self, fraction: float, key: Key) -> Cohort:
        """Draw a random part of the cohort, without replacement, at least one client."""
        if fraction >= 1.0 or len(self) == 0:
            return self
        count = max(1, round(fraction * len(self)))
        draws = key.fold(self.ids).uniform(dtype=torch.float64)
        return self.part(torch.topk(draws, count, largest=False).indices.sort().values)

    def part(self, index: Tensor) -> Cohort:
        """The clients at the ascending positions ``index``, ``(K,)`` int64."""
        return replace(self, ids=self.ids[index], data=self.data.take(index))

    def enrol(self) -> Tensor:
        """Let the newcomers of the cohort make their private state; return their ids."""
        newcomers = self.store.newcomers(self.ids)
        groups = torch.split(newcomers, self.client.max_chunk or max(newcomers.numel(), 1))
        for ids in groups if newcomers.numel() else ():
            part = self.part(torch.searchsorted(self.ids, ids))
            key = self.secret.fold(ids).fold("enrol")
            self.store.enrol(ids, self.client.enrol(part.data, key))
        return newcomers

    def ask(
        self,
        step: str,
        down: Down | PerClient | None,
        *,
        reduce: Fold | None = None,
        who_diverged: Callable[[Any], Tensor] | None = None,
    ) -> Replies:
        """Ask every client for a step; a transaction per client.

        Each chunk is run, guarded (a non-finite upload or private state is refused), committed
        (private state of accepted clients only), entered in the ledger, then folded into
        ``reduce`` or kept.

        Args:
            step: name of a `Client` step.
            down: the message that all clients receive, or `PerClient` messages.
            reduce: folds uploads into a sum at once, so that memory is bounded by the chunk.
            who_diverged: says of uploads whose training diverged, ``(C,)`` bool: these clients keep
                their new private state, to learn of it, but their uploads are left out.
        """
        call = getattr(self.client, step)
        # Counted for each step, so that asking for one changes no draw of another.
        nonce = (*self.when, next(self._asked[step]))
        failed: dict[int, str] = {}
        accepted, kept, total = [], [], None
        for index in self._chunks(down):
            ids = self.ids[index]
            key = self.secret.fold(ids).fold(step, *nonce)
            mine = self.store.take(ids)
            sent = down.take(index) if isinstance(down, PerClient) else down
            # All at once: the same object every round, so that what is derived from it is kept.
            data = self.data if index.numel() == len(self) else self.data.take(index)
            up, new = call(sent, mine, data, key)
            ok, reasons = guard(up, new, ids)
            failed |= reasons
            self.ledger.down(step, sent, 1 if isinstance(down, PerClient) else ids.numel())
            if not bool(ok.all()):
                up, new, index, ids, key = _only(ok, up, new, index, ids, key)
                if self._is_nobody(index):
                    continue
            if new is not None:
                self.store.commit(ids, new)
            if up is None:
                accepted.append(index)
                continue
            for layer in self.middleware:
                up = layer(up, key)
            self.ledger.up(step, up, ids.numel())
            if who_diverged is not None:
                up, index, reasons = _counted(who_diverged(up), up, index, ids)
                failed |= reasons
            accepted.append(index)
            if reduce is not None:
                total = reduce.add(total, up)
            elif not self._is_nobody(index):
                kept.append(up)
        for client, why in failed.items():
            self.journal.refuse(step, client, why)
        return self._replies(accepted, kept, total, failed)

    def _is_nobody(self, index: Tensor) -> bool:
        """Whether nothing can be made of the answers: a list has no rows of nobody."""
        return not index.numel() and self.client.max_chunk == 1

    def _replies(
        self, accepted: list[Tensor], kept: list[Up], total: Any, failed: dict[int, str]
    ) -> Replies:
        index = torch.cat(accepted) if accepted else torch.empty(0, dtype=torch.int64)
        order = torch.argsort(index)
        up: Any = None
        if kept and self.client.max_chunk == 1:
            up = [kept[place] for place in order.tolist()]
        elif kept:
            up = kept[0]
            for more in kept[1:]:
                up = tree.concatenate(up, more)
            up = tree.take(up, order)
        return Replies(self.ids[index[order]], failed, up, total)

    def _chunks(self, down: Any) -> Iterator[Tensor]:
        """Positions of the clients, chunk by chunk; clients of equal work together."""
        if not len(self):
            return
        order, work = torch.arange(len(self)), self.client.work(self.data)
        by_work = order if work is None else torch.argsort(work, descending=True, stable=True)
        sizes = self._chunk_sizes(by_work, down)
        for part in torch.split(by_work if len(sizes) > 1 else order, sizes):
            yield part.sort().values

    def _chunk_sizes(self, order: Tensor, down: Any) -> list[int]:
        """Numbers of clients, in this order, that are stacked."""
        limit = min(c for c in (self.chunk, self.client.max_chunk, len(self)) if c)
        footprint = self.client.footprint(self.data, down) if limit == len(self) else None
        if footprint is None or self.chunk is not None:
            full, rest = divmod(len(self), limit)
            return [limit] * full + [rest] * (rest > 0)
        return fitting(footprint[order])


def fitting(footprint: Tensor) -> list[int]:
    """Cut clients into stacks that fit into ``WORKING_MEMORY``: how many are in each.

    Args:
        footprint: ``(C,)`` bytes that each takes, in their order.

    Example:
        >>> fitting(torch.full((5,), WORKING_MEMORY // 2))
        [2, 2, 1]
    """
    filled = (footprint.cumsum(0) - 1).clamp_min(0) // WORKING_MEMORY
    return filled.unique_consecutive(return_counts=True)[1].tolist()


def _only(
    ok: Tensor, up: Any, new: Any, index: Tensor, ids: Tensor, key: Key
) -> tuple[Any, Any, Tensor, Tensor, Key]:
    keep = ok.nonzero().flatten()
    new = None if new is None else tree.take(new, keep)
    up = None if up is None else tree.take(up, keep)
    return up, new, index[keep], ids[keep], key.take(keep)


def _counted(
    lost: Tensor, up: Any, index: Tensor, ids: Tensor
) -> tuple[Any, Tensor, dict[int, str]]:
    if not bool(lost.any()):
        return up, index, {}
    reasons = dict.fromkeys(ids[lost].tolist(), "its training diverged")
    rest = (~lost).nonzero().flatten()
    return tree.take(up, rest), index[rest], reasons


__all__ = ["ClientData", "Cohort", "Replies", "fitting"]
