"""Clients in this process, and the transaction by which each of them answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.chunks import chunks, working_memory
from coterie.core.federation.exchange import Answers, Exchange, Request
from coterie.core.federation.guard import Asked, guard, guard_state, versions, written
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.client import Client, Middleware, layers_of, passed
from coterie.core.protocol.messages import Aligned
from coterie.core.protocol.uploads import PLAUSIBLE, Bounds
from coterie.core.tensors import tree
from coterie.core.tensors.device import CPU, keep_freed, moved
from coterie.core.tensors.keys import Key

NOBODY = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Tried:
    """What a chunk made of a step, before anybody has looked at it."""

    ids: Tensor
    key: Key
    down: Any
    mine: Any
    before: Any
    up: Any
    new: Any


ENROLLED_AT_ONCE = 1 << 13
"""Newcomers whose private state is made in one call: drawing it takes more room than it."""


@dataclass
class InProcess(Exchange):
    """Clients in one process: stacked, a chunk at a time, or in the list form one by one.

    Args:
        client: the client half.
        blocks: the clients' data, block number -> `coterie.core.protocol.client.ClientData`.
        secrets: gives the clients' own keys, ``(K,)``, by their ids.
        chunk: clients per stacked call; None = as many as fit into memory (`working_memory`).
        middleware: what uploads pass on their way out (clipping, noise).
        bounds: of what an upload may be.
        device: where the data of a block are copied.
        kept: private state of earlier rounds; None for newcomers only.

    Attributes:
        store: private state.
    """

    client: Client[Any, Any]
    blocks: Any
    secrets: Callable[[Tensor], Key]
    chunk: int | None = None
    middleware: tuple[Middleware, ...] = ()
    bounds: Bounds = PLAUSIBLE
    device: torch.device = CPU
    kept: PrivateStore[Any] | None = None

    def __post_init__(self) -> None:
        keep_freed()
        self.is_list = self.client.form == "list"
        self._moved: tuple[int, Any] = (-1, None)
        self._sorted = (-1, NOBODY, NOBODY)  # block, ids ascending, their places in its data
        self.store = PrivateStore(not self.is_list) if self.kept is None else self.kept

    def data(self, block: int) -> Any:
        """Data of the clients of a block; before the first, one may look at its clients."""
        block = max(block, 0)
        if self.device == CPU:
            return self.blocks[block]
        if self._moved[0] != block:  # one object for all its rounds, to keep what is derived
            self._moved = (block, moved(self.blocks[block], self.device))
        return self._moved[1]

    def present(self, block: int) -> Tensor:
        """Who takes part in a block, ``(R,)`` int64 ascending."""
        ids: Tensor = self.data(block).ids
        return ids

    def enrol(self, ids: Tensor, block: int) -> Tensor:
        """Let the newcomers among ``ids`` make their private state; return their ids."""
        newcomers = self.store.newcomers(ids)
        if self.is_list:
            key = self.secrets(newcomers).fold("enrol")
            for number, client in enumerate(newcomers[:, None]):
                mine = self.client.enrol(self.data_of(client, block), Key(key.state[number]))
                self.store.enrol(client, mine)
        elif newcomers.numel():
            self.store.enrol(newcomers, self._newcomers(newcomers, block))
        return newcomers

    def _newcomers(self, ids: Tensor, block: int) -> Any:
        """Private state of newcomers, stacked, made some at a time."""
        made = None
        for places in torch.arange(ids.numel()).split(ENROLLED_AT_ONCE):
            some = ids[places]
            part = self.client.enrol(self.data_of(some, block), self.secrets(some).fold("enrol"))
            if places.numel() == ids.numel():
                return part
            made = tree.with_room(part, ids.numel()) if made is None else made
            made = tree.put(made, places, part)
        return made

    def ask(self, request: Request) -> Iterator[Answers]:
        """Let clients answer, chunk by chunk; clients of equal work together.

        Raises:
            TypeError: the clients have no such step.
        """
        self._check(request)
        if self.is_list:
            for one in request.ids[:, None]:
                tried = self.tried(request, one, self.data_of(one, request.when[0]))
                yield self._settle(request, tried)
            return
        data = self.data_of(request.ids, request.when[0])
        for index in self.cut(data, request.down):
            yield self._settle(request, self._try_chunk(request, data, index))

    def to_plain(self) -> dict[str, Any]:
        """Private state of all clients and what they share, for a checkpoint."""
        secret = self.client.secret
        shared = {} if secret is None else {"secret": secret.to_plain()}
        return self.store.to_plain() | shared

    def load_plain(self, plain: Any) -> None:
        """Restore what `to_plain` gave, or ``parts``: of clients who had stores of their own.

        Raises:
            KeyError: it holds another structure, or tensors of another shape.
        """
        if plain is None or not {"rows", "parts"} & plain.keys():
            raise KeyError("its clients ran in processes of their own")
        parts = plain.get("parts", [plain])
        # Of before there was one, it has none, and none that this one could be mistaken for.
        if self.client.secret is not None and parts and "secret" in parts[0]:
            self.client.secret.load_plain(parts[0]["secret"])
        if "parts" not in plain:
            self.store.load_plain(plain, self._newcomer(), self.client.widened)
            return
        for part in parts:
            own = PrivateStore[Any](not self.is_list)
            own.load_plain(part, self._newcomer(), self.client.widened)
            for ids in own.ids().split(1) if self.is_list else [own.ids()]:
                self.store.enrol(ids, own.take(ids))

    def _try_chunk(self, request: Request, data: Any, index: Tensor) -> Tried:
        whole = index.numel() == len(request.ids)
        # All at once: the same object every round, so that what is derived from it is kept.
        return self.tried(request, request.ids[index], data if whole else data.take(index))

    def tried(self, request: Request, ids: Tensor, data: Any, mine: Any = None) -> Tried:
        """Run the step; nothing is changed yet. Private state is that of the store by default."""
        name, down = request.step.name, request.down_for(ids)
        key = self.secrets(ids).fold(name, *request.when, request.draw)
        mine = self.store.take(ids) if mine is None else mine
        before = versions(mine)
        own = Key(key.state[0]) if self.is_list else key
        up, new = getattr(self.client, name)(down, mine, data, own)
        if self.is_list and written(before):
            raise TypeError(f"step '{name}' wrote into private state: it must make a new one")
        return Tried(ids, key, down, mine, before, up, new)

    def _settle(self, request: Request, tried: Tried) -> Answers:
        """The transaction after a step: guard, pass uploads through middleware, and commit."""
        answers, new = self.judged(request, tried)
        if new is not None:
            was = None if written(tried.before) else tried.mine
            self.store.commit(answers.ids, new, was)
        return answers

    def judged(self, request: Request, tried: Tried) -> tuple[Answers, Any]:
        """What follows a step: guard, and pass uploads through middleware.

        Uploads come out as they leave, with new private state, and only of those who were accepted.
        """
        ids, key, up, new = tried.ids, tried.key, tried.up, tried.new
        asked = Asked(request.step, tried.down, ids, isinstance(request.down, Aligned))
        ok, reasons = guard(asked, up, self.bounds)
        sound, more = guard_state(new, ids, tried.before)
        ok, reasons = ok & sound, more | reasons
        if not bool(ok.all()):
            keep = ok.nonzero().flatten()
            ids, key = ids[keep], key.take(keep)
            if not keep.numel():
                return Answers(ids, None, reasons), None
            new = None if new is None else tree.take(new, keep)
            up = None if up is None else tree.take(up, keep)
        if up is not None and self.middleware:
            if request.again:  # else the difference of two uploads would be without noise
                key = key.fold("again", request.again)
            up = passed(up, key, layers_of(request.step.name, self.middleware), self.is_list)
        return Answers(ids, up, reasons), new

    def _check(self, request: Request) -> None:
        """Refuse a step that the clients do not have."""
        asked = request.step
        bound = self.client.steps().get(asked.name)
        if bound is None or not bound.serves(asked):
            have = bound or f"the steps {', '.join(self.client.steps()) or 'none'}"
            raise TypeError(f"{type(self.client).__name__} does not serve {asked}: it has {have}")

    def data_of(self, ids: Tensor, block: int) -> Any:
        """Data of some clients; of one client in the list form."""
        data = self.data(block)
        if not self.is_list and torch.equal(ids, data.ids):
            return data
        if self._sorted[0] != max(block, 0):
            self._sorted = (max(block, 0), *data.ids.sort())
        _, ascending, order = self._sorted
        places = order[torch.searchsorted(ascending, ids)]
        return data[int(places)] if self.is_list else data.take(places)

    def _newcomer(self) -> Any:
        """Private state of one client, for its structure only."""
        # Who joined later has no data of block 0 in a folder of its own.
        block = next(iter(self.blocks)) if isinstance(self.blocks, Mapping) else 0
        first = self.data(block).ids[:1]
        key, data = self.secrets(first), self.data_of(first, block)
        return self.client.enrol(data, Key(key.state[0]) if self.is_list else key)

    def cut(self, data: Any, down: Any) -> Iterator[Tensor]:
        """Positions of the clients, chunk by chunk."""
        return chunks(self.client, data, down, working_memory(self.device), self.chunk)
