"""A process for the clients of one folder, served request by request: bytes in, bytes out."""

from __future__ import annotations

import argparse
import hashlib
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from coterie.core.engines.folder import ClientFolder, Position
from coterie.core.errors import UserError
from coterie.core.federation.cohort import counted, folded
from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import field_sizes
from coterie.core.kernels import switch
from coterie.core.privacy.build import middleware
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Aligned, AnyStep
from coterie.core.protocol.uploads import PLAUSIBLE, Bounds, Fold
from coterie.core.settings.schema import build
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors import tree
from coterie.core.wire.annotations import Nest
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, decode, encode, peek


@dataclass(frozen=True)
class RequestHeader:
    """What a request belongs to.

    Attributes:
        run: name of the run; private state is of one run.
        block: of the round.
        round: in the block.
        number: how many requests of the round came before.
        draw: how many for this step; folded into the clients' keys.
        step: what is asked for; ``ENROL`` and ``PRESENT`` are no steps.
        clients: ids of those who are asked.
        one_each: whether the message is stacked over them.
        fold: what to make of the uploads before they leave, by name and fields; None for nothing.
    """

    run: str
    block: int
    round: int
    number: int
    draw: int
    step: str
    clients: tuple[int, ...]
    one_each: bool = False
    fold: dict[str, Nest] | None = None

    @property
    def when(self) -> tuple[int, int]:
        """The round."""
        return self.block, self.round


@dataclass(frozen=True)
class ReplyHeader:
    """What a reply belongs to.

    Attributes:
        request: `digest` of the request.
        clients: ids of those whose answer counts, in the order in which they were asked.
        refused: id -> why its answer does not count.
        folded: whether the uploads are folded.
        sizes: field -> bytes of the uploads before they were folded; empty where they are not.
    """

    request: str
    clients: tuple[int, ...]
    refused: dict[str, str]
    folded: bool = False
    sizes: dict[str, int] | None = None


ENROL, PRESENT = "@enrol", "@present"


def digest(request: bytes) -> str:
    """Name a request by what is in it, bit for bit."""
    return hashlib.sha256(request).hexdigest()


# The clients of a folder, served request by request: bytes in, bytes out.
#
# A request of the current round is answered at most once: asked again, the same bytes are given
# again and nothing is trained twice. Requests of earlier rounds, or of another run, are refused.


class ClientHost:
    """Runs the clients of a folder, with the transaction that clients in one process have.

    The client half is made from the card, unless it is given.

    Raises:
        UserError: the folder is not complete.
    """

    def __init__(self, path: Path, client: Client[Any, Any] | None = None) -> None:
        self.folder = ClientFolder(path)
        self.client = client or self.folder.client()
        self.position = self.folder.position()
        self.exchange = self._exchange()
        state = self.folder.state(self.position)
        if state is not None:
            self.exchange.load_plain(state)
        self._kept = self.exchange.store.changes

    def answer(self, request: bytes) -> bytes:
        """Answer a request; what it changes is kept before the answer is given.

        Raises:
            ProtocolError: the request is malformed, too old, of another run, or not for these
                clients.
            UserError: the folder cannot be read or written.
        """
        header: RequestHeader = peek(request, header=RequestHeader)
        ids = self.folder.known(torch.tensor(header.clients, dtype=torch.int64))
        if header.step == PRESENT:
            return self._reply(request, self._present(header.block))
        self._check_run(header)
        if header.step == ENROL:
            return self._enrolled(request, header, ids)
        if (done := self._answered(header, digest(request))) is not None:
            return done
        if (step := self.client.steps().get(header.step)) is None:
            raise ProtocolError(f"{type(self.client).__name__} has no step {header.step!r}")
        down: Any = decode(request, step.down, header=RequestHeader)[0]
        sent = Aligned(ids, down) if header.one_each else down
        fold = None if header.fold is None else _fold(header.fold)
        if header.block not in self.exchange.blocks:
            raise ProtocolError(f"the clients take no part in block {header.block}")
        self.exchange.enrol(ids, header.block)
        asked = Request(step, sent, ids, header.when, header.draw, header.number, fold)
        reply = self._joined(request, step, fold, list(self.exchange.ask(asked)))
        known = self.position.answered if self.position.when == header.when else {}
        self._keep(header, header.when, known | {header.number: digest(request)}, reply)
        return reply

    def _present(self, block: int) -> Tensor:
        try:
            return self.exchange.present(block)
        except KeyError:
            return torch.empty(0, dtype=torch.int64)

    def _check_run(self, header: RequestHeader) -> None:
        if self.position.run not in ("", header.run):
            raise ProtocolError(
                f"the client has private state of run '{self.position.run}', not of "
                f"'{header.run}': its owner must remove position.json to begin anew"
            )

    def _answered(self, header: RequestHeader, name: str) -> bytes | None:
        """What was answered to this request before; None for a new one."""
        position = self.position
        if header.when < position.when:
            raise ProtocolError(f"request of round {header.when} after one of {position.when}")
        known = position.answered if header.when == position.when else {}
        if known.get(header.number) == name:
            return self.folder.reply(header.number)
        if known and header.number <= max(known):
            raise ProtocolError(f"request {header.number} after {max(known)} of {header.when}")
        return None

    def _enrolled(self, request: bytes, header: RequestHeader, ids: Tensor) -> bytes:
        newcomers = self.exchange.enrol(ids, header.block)
        if newcomers.numel():
            self._keep(header, self.position.when, self.position.answered)
        return self._reply(request, newcomers)

    def _joined(
        self, request: bytes, step: AnyStep[Any, Any], fold: Fold | None, parts: list[Answers]
    ) -> bytes:
        """One reply of all chunks."""
        up: Any = None
        sizes = Counter[str]()
        refused: dict[int, str] = {}
        ids = torch.empty(0, dtype=torch.int64)
        for part in parts:
            if fold is not None:
                sizes.update({} if part.up is None else field_sizes(part.up))
                part = counted(step, part)
            refused |= part.refused
            ids = torch.cat([ids, part.ids])
            if part.up is None:
                continue
            one = part.up if fold is None else folded(fold, step, part)
            if up is not None:
                one = tree.concatenate(up, one) if fold is None else fold.merge(up, one)
            up = one
        return self._reply(request, ids, up, refused, None if fold is None else dict(sizes))

    def _reply(
        self,
        request: bytes,
        ids: Tensor,
        up: Any = None,
        refused: Mapping[int, str] | None = None,
        sizes: dict[str, int] | None = None,
    ) -> bytes:
        why = {str(client): reason for client, reason in (refused or {}).items()}
        clients = tuple(ids.tolist())
        header = ReplyHeader(digest(request), clients, why, sizes is not None, sizes)
        return encode(up, header)

    def _keep(
        self,
        header: RequestHeader,
        when: tuple[int, int],
        answered: dict[int, str],
        reply: bytes | None = None,
    ) -> None:
        """Move on, and write private state anew where it has changed."""
        changed = self.exchange.store.changes != self._kept
        moved = Position(header.run, when, answered, self.position.state + changed)
        self.folder.keep(moved, reply, self.exchange.to_plain() if changed else None)
        self.position, self._kept = moved, self.exchange.store.changes

    def _exchange(self) -> InProcess:
        card = self.folder.card.settings
        own = {k.removeprefix("privacy."): v for k, v in card.items() if k.startswith("privacy.")}
        blocks = _Blocks(self.folder, self.client)
        layers = middleware(build(PrivacySettings, own), self.client.steps())
        most = Bounds(
            card.get("engine.max_norm", PLAUSIBLE.norm),
            card.get("engine.max_count", PLAUSIBLE.count),
        )
        chunk = card.get("engine.chunk")
        return InProcess(self.client, blocks, self.folder.secrets, chunk, layers, most)


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


# A process for the clients of one folder.
#
#     python -m coterie.core.engines.worker --folder CLIENT
#
# It reads requests from standard input and writes replies to standard output, each as eight bytes
# of length (little endian) and the bytes. It imports neither lightning nor a paper's server half.
# What goes wrong is told on standard error, which may name paths and stays on the clients' machine;
# the reply then only says that there is none.

_LENGTH = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve requests until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m coterie.core.engines.worker")
    parser.add_argument("--folder", type=Path, required=True, help="the clients' own folder")
    folder: Path = parser.parse_args(arguments).folder
    try:
        Service(folder).serve(sys.stdin.buffer, sys.stdout.buffer)
    except (UserError, ProtocolError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


class Service:
    """Answers requests whatever they are; arguments as of `ClientHost`."""

    def __init__(self, folder: Path, client: Client[Any, Any] | None = None) -> None:
        self._folder, self._client = folder, client
        self._host: ClientHost | None = None

    def serve(self, requests: BinaryIO, replies: BinaryIO) -> None:
        """Answer frames until there are no more.

        Raises:
            UserError: the folder is not complete.
            ProtocolError: what comes is no frame.
        """
        folder = self.host().folder
        torch.set_num_threads(folder.threads)
        switch.allow(folder.card.settings.get("engine.kernels") != "off")
        while (request := read_frame(requests)) is not None:
            write_frame(replies, self.answer(request))

    def host(self) -> ClientHost:
        """The clients as they are now.

        Raises:
            UserError: the folder is not complete.
        """
        self._host = self._host or ClientHost(self._folder, self._client)
        return self._host

    def answer(self, request: bytes) -> bytes:
        """Answer a request; one that is refused, or fails, has a reply in which nobody counts.

        Raises:
            UserError: the folder is not complete.
        """
        try:
            return self.host().answer(request)
        except ProtocolError as error:
            return _refusal(request, str(error))
        except UserError:
            raise
        except Exception:
            traceback.print_exc()
            self._host = None  # memory may hold half a step: go on from what is kept
            return _refusal(request, "the step failed on the client's side")


def _refusal(request: bytes, why: str) -> bytes:
    """A reply in which nobody's answer counts."""
    asked: tuple[int, ...] = ()
    with suppress(ProtocolError):
        asked = peek(request, header=RequestHeader).clients
    return encode(None, ReplyHeader(digest(request), (), {str(one): why for one in asked}))


def read_frame(stream: BinaryIO) -> bytes | None:
    """Read the next message; None at the end.

    Raises:
        ProtocolError: it is cut short, or longer than any message may be.
    """
    head = stream.read(_LENGTH)
    if not head:
        return None
    length = int.from_bytes(head, "little")
    if len(head) < _LENGTH or length > MAX_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is cut short or too long")
    content = stream.read(length)
    if len(content) < length:
        raise ProtocolError(f"a frame of {length} bytes ends after {len(content)}")
    return content


def write_frame(stream: BinaryIO, content: bytes) -> None:
    """Write a message."""
    stream.write(len(content).to_bytes(_LENGTH, "little"))
    stream.write(content)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
