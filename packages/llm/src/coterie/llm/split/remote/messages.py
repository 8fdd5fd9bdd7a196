"""What travels between a client, the coordinator and the server of the middle."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.llm.mixing import Mixing
from coterie.llm.split.channel import Context

SERVICE = "coterie.llm.split.Middle"
TOKEN, SESSION, CLIENT = "coterie-token", "coterie-session", "coterie-client"
"""Names of metadata, by which a caller is known before its message is read."""


@dataclass(frozen=True)
class Open:
    """Begin a session of the client named beside; see `coterie.llm.split.middle.Middle.open`."""

    training: bool
    key: int | None
    model: str


@dataclass(frozen=True)
class Opened:
    """The session; see `coterie.llm.split.channel.Opening`."""

    session: str
    part: str


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
class Use:
    """Let sessions start from what a round made; see `coterie.llm.split.kept_parts.KeptParts`."""

    model: str
    run: str
    number: int
    clients: int
    optimizer: bool
    anew: bool


@dataclass(frozen=True)
class Gram:
    """Ask for inner products of what clients ``(A,)`` trained, or changed."""

    ids: Tensor
    changes: bool


@dataclass(frozen=True)
class Products:
    """Inner products ``(A, A)`` float64."""

    gram: Tensor


@dataclass(frozen=True)
class Mix:
    """Mix what was trained; see `coterie.llm.split.part.ServerLayers.mix`."""

    how: Mixing
    number: int
    floor: int
    best: int
