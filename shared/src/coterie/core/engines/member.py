"""One node as the server knows it: who is there, what was heard of it, what waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.core.engines.envelope import NOBODY, Parcel, ParcelHeader, RequestHeader
from coterie.core.engines.masks import Roster
from coterie.core.federation.exchange import Request
from coterie.core.protocol.messages import Aligned, PerClient
from coterie.core.tensors.ordering import among
from coterie.core.wire.codec import encode

Try = tuple[int, int]
"""Turn and attempt."""


class Node(Protocol):
    """Whoever takes the bytes of a parcel and brings those of its reply; hosts one client or many.

    Attributes:
        name: by which the server tells nodes apart; stays as long as the run.
    """

    name: str

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        """Bring a parcel and wait for its reply; None where there is none.

        Args:
            parcel: as `coterie.core.engines.envelope.Parcel.to_bytes` gave it.
            seconds: after which nobody waits any more; None for any time.
        """
        ...

    def give_up(self) -> None:
        """Nobody waits for what is asked: `ask` may return, and its reply must not come later."""
        ...

    def close(self) -> None:
        """The run ends."""
        ...


@dataclass(frozen=True)
class Question:
    """Whether a node is there, asked beside the rounds.

    Attributes:
        parcel: that asks.
        block: who takes part in which.
        reply: that is waited for.
    """

    parcel: Parcel
    block: int
    reply: Future[bytes | None]


@dataclass(frozen=True)
class Mark:
    """What was heard of a node, to go back there."""

    heard: str
    waiting: list[bytes]
    enrolled: Tensor


@dataclass
class Member:
    """What the server knows of a node.

    Attributes:
        node: how it is reached.
        expected: ``(C,)`` ids of the clients that are in it; None where it is asked.
        ids: block -> ``(R,)`` who of them takes part, as far as it was told.
        heard: name of the newest parcel whose answer counts; empty before the first.
        waiting: requests that it has missed, the oldest first.
        enrolled: ``(E,)`` ids of its clients that are known to have their private state.
        away: whether it is left out until it has said that it is there.
        late: the last try in which it gave no answer.
        why: what is known of why it is away.
        question: whether it is there, of which the answer is not known yet.
        mask: its public key for sums behind masks; empty where it has told none.
    """

    node: Node
    expected: Tensor | None = None
    ids: dict[int, Tensor] = field(default_factory=dict)
    heard: str = ""
    waiting: list[bytes] = field(default_factory=list)
    enrolled: Tensor = NOBODY
    away: bool = True
    late: Try = (-1, -1)
    why: str = "it was not asked yet"
    question: Question | None = None
    mask: str = ""

    def parcel(self, header: ParcelHeader, message: bytes) -> Parcel:
        """A request with those that were missed before, from the point that was heard last."""
        return Parcel(replace(header, since=self.heard), (*self.waiting, message))

    def counts(self, parcel: Parcel) -> None:
        """Its answer to a parcel counts: it has nothing left to catch up."""
        self.heard = parcel.name
        self.waiting = []

    def mark(self) -> Mark:
        """Where it stands."""
        return Mark(self.heard, list(self.waiting), self.enrolled)

    def go_back(self, mark: Mark) -> None:
        """Go on from there with the next request, as if nothing had been since."""
        self.heard, self.waiting, self.enrolled = mark.heard, list(mark.waiting), mark.enrolled

    def leave(self, why: str, late: Try = (-1, -1)) -> None:
        """It is away; since a try of a round, in which it is not asked any more."""
        self.away, self.why, self.late = True, why, late

    def come(self, block: int, ids: Tensor) -> None:
        """It is there, and these of its clients take part in a block."""
        self.away, self.why = False, ""
        self.ids[block] = ids

    def those_of(self, ids: Tensor, block: int) -> Tensor:
        """Which of ``ids`` are its clients that take part in a block, ascending."""
        own = self.ids.get(block)
        return ids[:0] if own is None else own[among(own, ids)]

    def meant(self, request: Request) -> Tensor:
        """Its clients that a request to everybody is for, though they were not there to be asked.

        Nobody by name where all get the same message: then it is for whoever takes part.
        """
        own = self._known()
        if isinstance(request.down, Aligned):
            return own[among(own, request.down.ids)]
        if isinstance(request.down, PerClient):
            return own[torch.isin(own, torch.tensor(list(request.down.messages)))]
        return NOBODY

    def _known(self) -> Tensor:
        """All of its clients, by the server's folder or by what it has said so far."""
        if self.expected is not None:
            return self.expected
        return torch.cat([NOBODY, *self.ids.values()]).unique()

    def count(self, block: int) -> int:
        """How many clients of it take part in a block, as far as is known; at least 1."""
        own = self.ids.get(block, self.expected)
        return 1 if own is None else own.numel()


def message_of(request: Request, ids: Tensor, roster: Roster | None = None) -> bytes:
    """What some clients are asked, as bytes; nobody by name for all that take part."""
    down, one_each = request.down, isinstance(request.down, Aligned)
    if one_each or isinstance(down, PerClient):
        down = request.down_for(ids)
    fold = None if request.fold is None else request.fold.to_plain()
    (block, number), step = request.when, request.step.name
    return encode(
        down, RequestHeader(block, number, request.draw, step, ids, one_each, fold, roster)
    )


@dataclass
class RoundCosts:
    """What a round cost between server and nodes, all its tries together.

    Attributes:
        late: names of the nodes that gave no answer in time, or none at all.
        waited: seconds in which the server did nothing but wait for nodes.
        sent: bytes of parcels, with headers and with what was missed before.
        received: bytes of replies.
    """

    late: set[str] = field(default_factory=set)
    waited: float = 0.0
    sent: int = 0
    received: int = 0


def waiting_plain(members: Sequence[Member]) -> dict[str, Any]:
    """What members have been heard to do and what waits for them, for a checkpoint.

    A request that waits for many is in it once.
    """
    numbers: dict[bytes, int] = {}
    waiting = {
        one.node.name: [numbers.setdefault(message, len(numbers)) for message in one.waiting]
        for one in members
    }
    return {
        "heard": {one.node.name: one.heard for one in members},
        "waiting": waiting,
        "requests": [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in numbers],
    }


def load_waiting(members: Sequence[Member], plain: dict[str, Any]) -> None:
    """Restore what `waiting_plain` gave.

    Raises:
        KeyError: it is of other nodes.
    """
    names = {one.node.name for one in members}
    if names != plain["heard"].keys():
        raise KeyError(f"the clients were in {', '.join(plain['heard'])}")
    requests = [one.numpy().tobytes() for one in plain["requests"]]
    for one in members:
        one.heard = plain["heard"][one.node.name]
        one.waiting = [requests[number] for number in plain["waiting"][one.node.name]]
