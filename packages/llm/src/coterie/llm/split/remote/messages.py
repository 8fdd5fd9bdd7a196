"""What travels between a client, the coordinator and the server of the middle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from coterie.llm.split.context import Context

SERVICE = "coterie.llm.split.Middle"
LEND = "Lend"  # the one method without a message of its own: a part comes, as a stream
TOKEN, SESSION = "coterie-token", "coterie-session"  # names of metadata
PIECE = 1 << 19
"""Most bytes of a message of a stream; a server takes at least twice as many."""


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut bytes, which join to the whole again; nothing is one empty piece.

    Example:
        >>> [len(piece) for piece in pieces(bytes(PIECE + 3))]
        [524288, 3]
    """
    for start in range(0, max(len(data), 1), PIECE):
        yield data[start : start + PIECE]


@dataclass(frozen=True)
class Open:
    """Begin a session; see `coterie.llm.split.middle.Middle.open`."""

    client: int
    training: bool
    key: int | None
    model: str


@dataclass(frozen=True)
class Opened:
    """The name of the session."""

    session: str


@dataclass(frozen=True)
class Forward:
    """Hidden states ``(B, T, h)`` from the client's lower layers."""

    hidden: Tensor
    context: Context


@dataclass(frozen=True)
class Activation:
    """Hidden states ``(B, T, h)`` after the middle."""

    hidden: Tensor
    call: int


@dataclass(frozen=True)
class Backward:
    """Gradient ``(B, T, h)`` of what a call gave."""

    call: int
    gradient: Tensor


@dataclass(frozen=True)
class Gradient:
    """Gradient ``(B, T, h)`` of what a call got, if it was wanted."""

    gradient: Tensor | None


@dataclass(frozen=True)
class Step:
    """Make an optimizer step."""


@dataclass(frozen=True)
class Close:
    """End the session."""

    keep: bool


@dataclass(frozen=True)
class Done:
    """It is done."""


@dataclass(frozen=True)
class Clear:
    """Forget all that was lent and trained."""

    model: str


@dataclass(frozen=True)
class Trained:
    """Ask for the part that a client trained, which comes as a stream."""

    client: int
