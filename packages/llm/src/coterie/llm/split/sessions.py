"""Sessions of clients with the middle, which expire when a client is gone."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors.keys import Key

UNKNOWN = (
    "the session is unknown or expired (has the server been restarted?): run again with --resume"
)


@dataclass(frozen=True)
class Pending:
    """A call that awaits its gradient: what came in, a leaf, and went out, both ``(B, T, h)``."""

    hidden: Tensor
    out: Tensor
    since: float


@dataclass
class Session:
    """What a client does between open and close.

    Attributes:
        client: its id.
        training: whether the row is trained.
        row: ``(d,)`` leaf.
        start: ``(d,)`` the row at open, to which FedProx pulls.
        key: of dropout; None where there is none.
        touched: when it was last used.
        optimizer: state of the optimizer of this row.
        gradient: ``(d,)`` since the last step; None before the first.
        pending: calls by number.
        calls: number of the next one.
        drawn: how many had dropout.
        cache: of generation, with its number and its batch size.
        keep: whether the optimizer's state is given back.
    """

    client: int
    training: bool
    row: Tensor
    start: Tensor
    key: Key | None
    touched: float
    optimizer: RowState | None = None
    gradient: Tensor | None = None
    pending: dict[int, Pending] = field(default_factory=dict)
    calls: int = 0
    drawn: int = 0
    cache: tuple[int, int, Any] | None = None
    keep: bool = False


@dataclass(frozen=True)
class Limits:
    """What a client may use up.

    Attributes:
        ttl: seconds after which an unused session, or a call without its gradient, is dropped.
        sessions: how many a client may have open; one more ends the one that it used least lately.
        pending: how many calls of a session may await their gradient.
        tokens: of one call, cached ones included.
    """

    ttl: float = 600.0
    sessions: int = 8
    pending: int = 32
    tokens: int = 1 << 20


class Sessions:
    """The open sessions by their names, which cannot be guessed; the clock counts seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits, self.now = limits, clock
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: Session) -> str:
        """Open a session and name it; a client that has too many loses its idlest one."""
        self.expire()
        own = [name for name, one in self._open.items() if one.client == session.client]
        own.sort(key=lambda name: self._open[name].touched)
        for name in own[: len(own) + 1 - self.limits.sessions]:
            del self._open[name]
        # A name is a capability, not part of a result: it must not follow from the run's seed.
        name = secrets.token_hex(16)
        self._open[name] = session
        return name

    def knows(self, name: str) -> bool:
        """Whether one of that name is open."""
        return name in self._open

    def get(self, name: str) -> Session:
        """Find a session and note its use.

        Raises:
            UserError: there is none of that name (any more).
        """
        self.expire()
        session = self._open.get(name)
        if session is None:
            raise UserError(UNKNOWN)
        session.touched = self.now()
        return session

    def remove(self, name: str) -> Session:
        """Close a session."""
        session = self.get(name)
        del self._open[name]
        return session

    def drop(self, client: int | None = None) -> None:
        """Drop the training session of a client, or of all."""
        self._open = {
            name: session
            for name, session in self._open.items()
            if not (session.training and client in (None, session.client))
        }

    def hold(self, session: Session, hidden: Tensor, out: Tensor) -> None:
        """Keep the graph of the session's present call until its gradient comes.

        Raises:
            UserError: too many are kept.
        """
        if len(session.pending) >= self.limits.pending:
            raise UserError(
                f"{len(session.pending)} calls await their gradient, which is the most: go back "
                "after every few calls"
            )
        session.pending[session.calls] = Pending(hidden, out, self.now())

    def expire(self) -> None:
        """Drop what has waited too long."""
        limit = self.now() - self.limits.ttl
        self._open = {name: one for name, one in self._open.items() if one.touched >= limit}
        for one in self._open.values():
            one.pending = {call: p for call, p in one.pending.items() if p.since >= limit}
