"""How the server trains the middle, and what a client may use up of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.core.local_training.row_optimizer import RowAdam, RowOptimizer


@dataclass(frozen=True)
class Training:
    """How the rows are trained; the same as on the client.

    Attributes:
        lr: learning rate.
        optimizer: one step a call of `Middle.step`.
        clip: largest L2 norm of the gradient of the middle's row; None for no limit.
        mu: FedProx, pull to the row at the start of the session.
    """

    lr: float
    optimizer: RowOptimizer = field(default_factory=RowAdam)
    clip: float | None = None
    mu: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What a client may use up.

    Attributes:
        ttl: seconds after which an unused session, or a call without its gradient, is dropped.
        sessions: how many may be open.
        pending: how many calls of a session may await their gradient.
        tokens: of one call, cached ones included.
    """

    ttl: float = 600.0
    sessions: int = 1024
    pending: int = 32
    tokens: int = 1 << 20
