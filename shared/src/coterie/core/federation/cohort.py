"""The cohort of an engine in one process, and the transaction by which it asks for a step."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.guard import guard, versions, written
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.privacy.parameters import parameter_names
from coterie.core.protocol.client import Client
from coterie.core.protocol.cohort import Aligned, Cohort, PerClient
from coterie.core.protocol.folds import Fold
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.middleware import Middleware
from coterie.core.protocol.replies import FoldedReplies, ListReplies, StackedReplies
from coterie.core.protocol.step import AnyStep
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

WORKING_MEMORY = 32 << 20
"""Bytes that a chunk may take by default; measured, larger chunks are hardly faster."""


@dataclass(frozen=True)
class InProcessCohort(Cohort):
    """Clients that take part, with everything an in-process engine needs to run them.

    Clients of the stacked form run a chunk at a time; those of the list form one after the other.

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

    client: Client[Any, Any]
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

    @property
    def is_list(self) -> bool:
        """Whether the clients are of the list form."""
        return self.client.form == "list"

    def part(self, index: Tensor) -> InProcessCohort:
        """The clients at the ascending positions ``index``, ``(K,)`` int64."""
        return replace(self, ids=self.ids[index], data=self.data.take(index))

    def enrol(self) -> Tensor:
        """Let the newcomers of the cohort make their private state; return their ids."""
        newcomers = self.store.newcomers(self.ids)
        key = self.secret.fold(newcomers).fold("enrol")
        places = torch.searchsorted(self.ids, newcomers)
        if self.is_list:
            for number, (place, client) in enumerate(
                zip(places.tolist(), newcomers[:, None], strict=True)
            ):
                mine = self.client.enrol(self.data[place], Key(key.state[number]))
                self.store.enrol(client, mine)
        elif newcomers.numel():
            self.store.enrol(newcomers, self.client.enrol(self.data.take(places), key))
        return newcomers

    def crossed(self, step: str, direction: str, field: str, messages: int, size: int) -> None:
        """Enter into the ledger what crossed beside messages, such as activations."""
        self.ledger.crossed(step, direction, field, messages, size)

    def _ask(
        self,
        step: AnyStep[Any, Any],
        down: Any,
        reduce: Fold[Any, Any] | None,
        who_diverged: Callable[[Any], Tensor] | None,
    ) -> Any:
        name = self._method(step)
        # Counted for each step, so that asking for one changes no draw of another.
        nonce = (*self.when, next(self._asked[name]))
        self.journal.releases += bool(len(self) and parameter_names(step.up))
        failed: dict[int, str] = {}
        accepted, kept, total = [], [], None
        for index in self._chunks(down):
            up, ids, reasons = self._answered(name, down, index, nonce)
            failed |= reasons
            if up is not None and who_diverged is not None and ids.numel():
                up, ids, reasons = _counted(who_diverged(self._stack(up)), up, ids)
                failed |= reasons
            accepted.append(ids)
            if up is None or not ids.numel():
                continue
            if reduce is not None:
                total = reduce.add(total, self._stack(up))
            else:
                kept.append(up)
        for client, why in failed.items():
            self.journal.refuse(name, client, why)
        ids = torch.cat(accepted) if accepted else self.ids[:0]
        if reduce is not None:
            return FoldedReplies(ids.sort().values, failed, total)
        return self._replies(ids, failed, kept)

    def _method(self, step: AnyStep[Any, Any]) -> str:
        """Name of the client's method for a step."""
        bound = self.client.steps().get(step.name)
        if bound is None or not bound.serves(step):
            have = bound or f"the steps {', '.join(self.client.steps()) or 'none'}"
            raise TypeError(f"{type(self.client).__name__} does not serve {step}: it has {have}")
        return step.name

    def _answered(
        self, name: str, down: Any, index: Tensor, nonce: tuple[int, ...]
    ) -> tuple[Any, Tensor, dict[int, str]]:
        """Let a chunk answer: its uploads as they leave, ids of those accepted, why not others."""
        ids = self.ids[index]
        key = self.secret.fold(ids).fold(name, *nonce)
        sent, one_each = self._sent(down, ids)
        mine = self.store.take(ids)
        before = versions(mine)
        data = self._local(index)
        own = Key(key.state[0]) if self.is_list else key
        up, new = getattr(self.client, name)(sent, mine, data, own)
        if self.is_list and written(before):
            raise TypeError(f"step '{name}' wrote into private state: it must make a new one")
        ok, reasons = guard(up, new, ids, before)
        self.ledger.down(name, sent, 1 if one_each else ids.numel())
        if not bool(ok.all()):
            keep = ok.nonzero().flatten()
            ids, key = ids[keep], key.take(keep)
            if not keep.numel():
                return None, ids, reasons
            new = None if new is None else tree.take(new, keep)
            up = None if up is None else tree.take(up, keep)
        if new is not None:
            self.store.commit(ids, new)
        if up is not None:
            for layer in self.middleware:
                up = self._passed(layer, up, key)
            self.ledger.up(name, up, ids.numel())
        return up, ids, reasons

    def _sent(self, down: Any, ids: Tensor) -> tuple[Any, bool]:
        """What the clients of a chunk receive, and whether each receives its own."""
        if isinstance(down, PerClient):
            return down.messages[int(ids)], True
        if isinstance(down, Aligned):
            return down.of(ids), True
        return down, False

    def _local(self, index: Tensor) -> Any:
        """Data of a chunk."""
        if self.is_list:
            return self.data[int(index)]
        # All at once: the same object every round, so that what is derived from it is kept.
        return self.data if index.numel() == len(self) else self.data.take(index)

    def _stack(self, up: Any) -> Any:
        return tree.as_stack(up) if self.is_list else up

    def _passed(self, layer: Middleware, up: Any, key: Key) -> Any:
        up = layer(self._stack(up), key)
        return tree.as_one(up) if self.is_list else up

    def _replies(self, ids: Tensor, failed: dict[int, str], kept: list[Any]) -> Any:
        order = torch.argsort(ids)
        if self.is_list:
            ups = dict(zip(ids.tolist(), kept, strict=True)) if kept else {}
            ups = {client: ups[client] for client in sorted(ups)}
            return ListReplies(ids[order], failed, ups)
        if not kept:
            return StackedReplies(ids[order], failed)
        up = kept[0]
        for more in kept[1:]:
            up = tree.concatenate(up, more)
        return StackedReplies(ids[order], failed, tree.take(up, order))

    def _chunks(self, down: Any) -> Iterator[Tensor]:
        """Positions of the clients, chunk by chunk; clients of equal work together."""
        if not len(self):
            return
        if self.is_list:
            yield from torch.arange(len(self)).split(1)
            return
        order, work = torch.arange(len(self)), self.client.work(self.data)
        by_work = order if work is None else torch.argsort(work, descending=True, stable=True)
        sizes = self._chunk_sizes(by_work, down)
        for part in torch.split(by_work if len(sizes) > 1 else order, sizes):
            yield part.sort().values

    def _chunk_sizes(self, order: Tensor, down: Any) -> list[int]:
        """Numbers of clients, in this order, that are stacked."""
        limit = min(self.chunk or len(self), len(self))
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


def _counted(lost: Tensor, up: Any, ids: Tensor) -> tuple[Any, Tensor, dict[int, str]]:
    """Leave out the uploads of clients whose training diverged."""
    if not bool(lost.any()):
        return up, ids, {}
    reasons = dict.fromkeys(ids[lost].tolist(), "its training diverged")
    rest = (~lost).nonzero().flatten()
    return tree.take(up, rest) if rest.numel() else None, ids[rest], reasons
