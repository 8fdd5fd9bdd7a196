"""What is around a message between server and node: whose it is, what it goes on from, which try.

A parcel holds the request that is answered and, before it, those that its clients have missed. Its
name is a digest of them and of the parcel that it goes on from, as a commit is of its files and its
parent. So equal names are equal requests after equal histories, whichever try of a round, or server
that was started again, sends them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from coterie.core.wire.annotations import Nest
from coterie.core.wire.codec import MAX_BYTES, ProtocolError, decode, encode, peek

NOBODY = torch.empty(0, dtype=torch.int64)
ENROL, PRESENT = "@enrol", "@present"
_LENGTH = 8
LONGEST_WORDS = 200
"""Characters of what a client says of itself."""


@dataclass(frozen=True)
class RequestHeader:
    """What a request belongs to.

    Attributes:
        block: of the round.
        round: in the block.
        draw: how many asks for this step came before in the round; folded into the clients' keys.
        step: what is asked for; ``ENROL`` and ``PRESENT`` are no steps.
        clients: ``(C,)`` int64 ids of those who are asked; none stands for all of the folder that
            take part in the block, where the clients have missed what everybody was asked.
        one_each: whether the message is stacked over them.
        fold: what to make of the uploads before they leave, by name and fields; None for nothing.
        roster: of whom the sum is, where it leaves behind masks
            (`coterie.core.engines.masks.Roster`); None where it leaves as it is.
    """

    block: int
    round: int
    draw: int
    step: str
    clients: Tensor
    one_each: bool = False
    fold: dict[str, Nest] | None = None
    roster: dict[str, list[str]] | None = None

    def __post_init__(self) -> None:
        _check_ids(self.clients)

    @property
    def when(self) -> tuple[int, int]:
        """The round."""
        return self.block, self.round


@dataclass(frozen=True)
class ParcelHeader:
    """What a parcel belongs to.

    Attributes:
        run: name of the run; private state is of one run.
        since: name of the newest parcel whose answer the server has counted; the clients go on
            from their state after it. Empty before the first.
        epoch: how often the run's server was started.
        turn: how many rounds the run has begun, over all blocks.
        attempt: how often this one was tried before.
    """

    run: str
    since: str = ""
    epoch: int = 0
    turn: int = 0
    attempt: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """What only grows: a parcel of a lower order comes too late."""
        return self.epoch, self.turn, self.attempt


@dataclass(frozen=True)
class Messages:
    """The requests of a parcel, as bytes."""

    each: list[Tensor]


@dataclass(frozen=True)
class Parcel:
    """Requests to the clients of one node, the last of which is answered.

    Attributes:
        header: what they belong to.
        messages: each as `coterie.core.wire.codec.encode` gave it.

    Example:
        >>> from dataclasses import replace
        >>> asked = encode(None, RequestHeader(0, 1, 0, "update", torch.tensor([3])))
        >>> parcel = Parcel(ParcelHeader("trial"), (asked,))
        >>> again = Parcel(replace(parcel.header, attempt=1), (asked,))
        >>> parcel.name == again.name, Parcel.read(again.to_bytes()) == again
        (True, True)
    """

    header: ParcelHeader
    messages: tuple[bytes, ...]

    @property
    def name(self) -> str:
        """Digest of the requests and of what they go on from, the same in every try."""
        found = hashlib.sha256(f"{self.header.run!r} {self.header.since}\n".encode())
        for message in self.messages:
            found.update(len(message).to_bytes(_LENGTH, "little"))
            found.update(message)
        return found.hexdigest()

    def requests(self) -> list[RequestHeader]:
        """What each of its requests belongs to.

        Raises:
            ProtocolError: one is no request.
        """
        return [peek(message, header=RequestHeader) for message in self.messages]

    def to_bytes(self) -> bytes:
        """Write it down."""
        each = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in self.messages]
        return encode(Messages(each), self.header)

    @staticmethod
    def read(data: bytes) -> Parcel:
        """Read what `to_bytes` gave.

        Raises:
            ProtocolError: it is no parcel.
        """
        found: Any
        found, header = decode(data, Messages, header=ParcelHeader)
        each: list[Tensor] = found.each
        if not each or any(one.dtype != torch.uint8 for one in each):
            raise ProtocolError("a parcel without a request")
        return Parcel(header, tuple(one.numpy().tobytes() for one in each))


@dataclass(frozen=True)
class ReplyHeader:
    """What a reply belongs to.

    Attributes:
        request: name of the parcel.
        clients: ``(A,)`` int64 ids of those whose answer counts, as they stand in the upload.
        refused: id -> why its answer does not count.
        folded: whether the uploads are folded.
        sizes: field -> bytes of the uploads before they were folded; empty where they are not.
        why: the parcel was refused, and nothing of it was done.
        about: to ``PRESENT``: the run whose private state the clients have, their card's name, and
            their key for masks.
        dtypes: path -> dtype of what is behind masks; None where nothing is.
    """

    request: str
    clients: Tensor
    refused: dict[str, str]
    folded: bool = False
    sizes: dict[str, int] | None = None
    why: str = ""
    about: dict[str, str] | None = None
    dtypes: dict[str, str] | None = None

    def __post_init__(self) -> None:
        _check_ids(self.clients)


def _check_ids(clients: Tensor) -> None:
    if clients.dtype != torch.int64 or clients.dim() != 1:
        raise ValueError("ids of clients are not int64 in one axis")


def refusal(parcel: Parcel | None, why: str) -> bytes:
    """A reply to a parcel of which nothing was done."""
    name = "" if parcel is None else parcel.name
    return encode(None, ReplyHeader(name, NOBODY, {}, why=why))


def words(said: str) -> str:
    """What a client says of itself, cut, in characters that can be printed.

    Example:
        >>> words("no" + chr(27) + "way"), len(words("o" * 300))
        ('no way', 200)
    """
    text = "".join(one if one.isprintable() else " " for one in said[: 2 * LONGEST_WORDS])
    return text if len(said) <= LONGEST_WORDS else text[: LONGEST_WORDS - 1] + "…"


# Frames: bytes on a stream, each with their length before them.


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
