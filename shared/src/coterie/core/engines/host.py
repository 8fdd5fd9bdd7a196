"""The clients of a folder, served parcel by parcel: bytes in, bytes out.

A parcel is answered at most once: asked again, the same bytes are given again and nothing is
trained twice. It says which parcel it goes on from. Where that is not the newest, as the answers
since then did not count or their round is tried again, the clients go back to their state after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.envelope import (
    ENROL,
    NOBODY,
    PRESENT,
    Parcel,
    ReplyHeader,
    RequestHeader,
)
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.masks import Masks, entry, kinds
from coterie.core.engines.position import Point
from coterie.core.federation.collected import joined
from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.in_process import InProcess
from coterie.core.privacy.build import middleware
from coterie.core.privacy.releases import release_names
from coterie.core.protocol.client import Client
from coterie.core.protocol.edition import check_edition
from coterie.core.protocol.messages import Aligned
from coterie.core.protocol.uploads import PLAUSIBLE, Bounds, Fold
from coterie.core.settings.schema import build
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.saved import digest
from coterie.core.wire.codec import ProtocolError, decode, encode

_UNKNOWN = -2  # no file has what is in memory


class ClientHost:
    """Runs the clients of a folder, with the transaction that clients in one process have.

    The client half is made from the card, unless it is given.

    Raises:
        UserError: the folder is not complete, or client and card have other constants.
        Misfit: its card was written by other versions than these.
    """

    def __init__(self, path: Path, client: Client[Any, Any] | None = None) -> None:
        self.folder, self.masks = ClientFolder(path), Masks(path)
        check_edition(self.folder.card)
        self.client = client or self.folder.client()
        self.folder.check(self.client)
        self._blocks = _Blocks(self.folder, self.client)
        self.position = self.folder.position()
        self.folder.tidy(self.position)
        self._memory = _UNKNOWN
        self._go_to(self.position.newest)

    def answer(self, data: bytes) -> bytes:
        """Answer a parcel; what it changes is kept before the answer is given.

        Raises:
            ProtocolError: the parcel is malformed, comes too late, is of another run, goes on from
                where these clients never were, or is not for them.
            UserError: the folder cannot be read or written.
        """
        parcel = Parcel.read(data)
        *missed, asked = parcel.requests()
        if asked.step == PRESENT:
            return self._present(parcel, asked)
        self._check(parcel)
        place = self.position.place(parcel.header.since)
        if (done := self.position.answered(place, parcel.name)) is not None:
            return self._again(parcel, done)
        self._go_to(self.position.points[place])
        changes = self.exchange.store.changes
        self._memory = _UNKNOWN  # until all of it is kept
        for header, message in zip(missed, parcel.messages, strict=False):
            self._catch_up(header, message)
        reply = self._answered(parcel, asked)
        self._keep(parcel, asked, place, reply, self.exchange.store.changes != changes)
        return reply

    def _check(self, parcel: Parcel) -> None:
        """Refuse what is of another run, or comes after a later try or server."""
        run, order = self.position.run, self.position.order
        if run not in ("", parcel.header.run):
            raise ProtocolError(
                f"the client has private state of run '{run}', not of '{parcel.header.run}': its "
                "owner must say coterie node reset, or remove position.json, to begin anew"
            )
        if parcel.header.order < order:
            raise ProtocolError(
                f"a request of (epoch, turn, attempt) {parcel.header.order} after one of {order}"
            )

    def _present(self, parcel: Parcel, asked: RequestHeader) -> bytes:
        """Who takes part in a block, and what the server must know before it asks for a step."""
        card = hashlib.sha256(self.folder.card.to_json().encode()).hexdigest()
        about = {"run": self.position.run, "card": card}
        if self.folder.card.settings.get("aggregate.secret"):
            about["mask"] = self.masks.public
        ids = self._of_block(asked.block)
        return encode(None, ReplyHeader(parcel.name, ids, {}, about=about))

    def _of_block(self, block: int) -> Tensor:
        try:
            return self.exchange.present(block)
        except KeyError:
            return NOBODY

    def _again(self, parcel: Parcel, done: Point) -> bytes:
        """What was answered before, also where it is a later try that asks."""
        position = self.position.seen(parcel.header.order)
        if position is not self.position:
            self.folder.keep(position)
            self.position = position
        return self.folder.reply(done)

    def _go_to(self, point: Point) -> None:
        """Have the private state of a point in memory."""
        if self._memory == point.state:
            return
        self.exchange = self._exchange()
        state = self.folder.state(point)
        if state is not None:
            self.exchange.load_plain(state)
        self._memory = point.state

    def _catch_up(self, header: RequestHeader, message: bytes) -> None:
        """Do what the clients have missed; nobody waits for their answer any more."""
        here = self._of_block(header.block)
        known = self.folder.known(header.clients)
        ids = known[torch.isin(known, here)] if known.numel() else here
        if ids.numel():
            request = self._request(header, message, ids)
            for _ in self.exchange.ask(request):
                pass

    def _answered(self, parcel: Parcel, asked: RequestHeader) -> bytes:
        ids = self.folder.known(asked.clients)
        if asked.step == ENROL:
            self._check_block(asked.block)
            return self._reply(parcel, self.exchange.enrol(ids, asked.block))
        self._check_hidden(asked)
        again = self.position.again(parcel, asked)
        request = self._request(asked, parcel.messages[-1], ids, again)
        found = joined(request, list(self.exchange.ask(request)))
        if asked.roster is not None:
            return self._hidden(parcel, asked, request, found)
        up = found.up if request.fold is None else found.total
        sizes = None if request.fold is None else found.sizes
        return self._reply(parcel, found.ids, up, found.refused, sizes)

    def _check_hidden(self, asked: RequestHeader) -> None:
        """Refuse to let out what the card says leaves behind masks."""
        step = self.client.steps().get(asked.step)
        released = step is not None and release_names(step.up)
        if released and self.folder.card.settings.get("aggregate.secret") and asked.roster is None:
            raise ProtocolError(
                f"the card says that sums leave behind masks, and '{asked.step}' was asked without"
            )

    def _hidden(
        self, parcel: Parcel, asked: RequestHeader, request: Request, found: Answers
    ) -> bytes:
        """The reply with a total behind masks, which open in the sum of all alone."""
        if found.total is None or asked.roster is None:
            raise ProtocolError("nobody's answer here counts, so that there is no sum to hide")
        mine = entry(self.masks.public, asked.clients, parcel.header.since)
        what = [parcel.header.run, *asked.when, asked.draw, asked.step, asked.fold, request.down]
        total = self.masks.hidden(found.total, asked.roster, mine, digest(what))
        why = {str(client): reason for client, reason in found.refused.items()}
        header = ReplyHeader(parcel.name, found.ids, why, True, found.sizes)
        return encode(total, replace(header, dtypes=kinds(found.total)))

    def _request(
        self, header: RequestHeader, message: bytes, ids: Tensor, again: int = 0
    ) -> Request:
        """Read a request; newcomers among the clients enrol."""
        if (step := self.client.steps().get(header.step)) is None:
            raise ProtocolError(f"{type(self.client).__name__} has no step {header.step!r}")
        down: Any = decode(message, step.down, header=RequestHeader)[0]
        sent = Aligned(header.clients, down) if header.one_each else down
        fold = None if header.fold is None else _fold(header.fold)
        self._check_block(header.block)
        self.exchange.enrol(ids, header.block)
        return Request(step, sent, ids, header.when, header.draw, fold, again=again)

    def _check_block(self, block: int) -> None:
        if block not in self.exchange.blocks:
            raise ProtocolError(f"the clients take no part in block {block}")

    def _reply(
        self,
        parcel: Parcel,
        ids: Tensor,
        up: Any = None,
        refused: Mapping[int, str] | None = None,
        sizes: dict[str, int] | None = None,
    ) -> bytes:
        why = {str(client): reason for client, reason in (refused or {}).items()}
        return encode(up, ReplyHeader(parcel.name, ids, why, sizes is not None, sizes))

    def _keep(
        self, parcel: Parcel, asked: RequestHeader, place: int, reply: bytes, changed: bool
    ) -> None:
        """Move on, and write private state anew where it has changed."""
        state, number = self.position.numbers()
        before = self.position.points[place]
        point = Point(parcel.name, state if changed else before.state, number)
        position = self.position.moved(parcel, asked, place, point)
        self.folder.keep(position, reply, self.exchange.to_plain() if changed else None)
        self.position, self._memory = position, point.state

    def _exchange(self) -> InProcess:
        card = self.folder.card.settings
        own = {k.removeprefix("privacy."): v for k, v in card.items() if k.startswith("privacy.")}
        layers = middleware(build(PrivacySettings, own), self.client.steps())
        most = Bounds(
            card.get("engine.max_norm", PLAUSIBLE.norm),
            card.get("engine.max_count", PLAUSIBLE.count),
        )
        chunk = card.get("engine.chunk")
        return InProcess(self.client, self._blocks, self.folder.secrets, chunk, layers, most)


class _Blocks(Mapping[int, Any]):
    """The clients' data by block; the newest one read stays in memory."""

    def __init__(self, folder: ClientFolder, client: Client[Any, Any]) -> None:
        self._folder, self._client = folder, client
        self._block = -1
        self._data: Any = None

    def __getitem__(self, block: int) -> Any:
        if block != self._block:
            data = self._folder.data(block, self._client)
            one = self._client.form == "list" and data is not None
            self._block, self._data = block, _OneClient(data) if one else data
        if self._data is None:
            raise KeyError(f"no data of block {block}")
        return self._data

    def __len__(self) -> int:
        return len(self._folder.blocks())

    def __iter__(self) -> Iterator[int]:
        return iter(self._folder.blocks())


class _OneClient:
    """The data of one client in the list form, as a list of one."""

    def __init__(self, data: Any) -> None:
        self._data, self.ids = data, torch.tensor([data.id])

    def __getitem__(self, place: int) -> Any:
        return self._data


def _fold(plain: dict[str, Any]) -> Fold:
    try:
        return Fold.from_plain(plain)
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"no fold is called {str(plain.get('name'))[:40]!r} here") from error
