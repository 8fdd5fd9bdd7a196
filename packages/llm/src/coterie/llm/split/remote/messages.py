"""What travels between a client, the coordinator and the server of the middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from coterie.llm.split.context import Context

SERVICE = "coterie.llm.split.Middle"
TOKEN, SESSION = "coterie-token", "coterie-session"  # names of metadata


@dataclass(frozen=True)
class Open:
    """Begin a session; see `coterie.llm.split.middle.Middle.open`."""

    client: int
    training: bool
    which: Literal["current", "best"]
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
class Begin:
    """Begin a round."""

    round: int


@dataclass(frozen=True)
class Trained:
    """Ask for columns ``start`` to ``end`` of the rows that clients trained.

    Attributes:
        ids: ``(n,)`` int64.
        start: first column.
        end: the one after the last.
    """

    ids: Tensor
    start: int
    end: int


@dataclass(frozen=True)
class Rows:
    """Columns ``(n, end - start)`` of rows."""

    rows: Tensor


@dataclass(frozen=True)
class Mixed:
    """A part of the mixed rows of a round, which `Commit` ends.

    Attributes:
        round: that has begun.
        rows: ``(n, w)``, see `coterie.llm.split.remote.partial_rows.PartialRows.put`.
        ids: ``(n,)`` int64.
        start: first column.
    """

    round: int
    rows: Tensor
    ids: Tensor
    start: int


@dataclass(frozen=True)
class Commit:
    """End a round with the mixed rows, all sent before, of the clients ``ids``, ``(n,)`` int64."""

    round: int
    ids: Tensor


@dataclass(frozen=True)
class KeepBest:
    """Keep the rows of the last round as the best."""


@dataclass(frozen=True)
class AskStatus:
    """Ask where the server stands."""


@dataclass(frozen=True)
class Status:
    """Where the server stands.

    Attributes:
        round: the last committed one; -1 before the first.
        size: d, trained numbers a client.
        model: fingerprint of the model.
        keep: committed rounds it keeps.
        max_bytes: of a message.
    """

    round: int
    size: int
    model: str
    keep: int
    max_bytes: int
