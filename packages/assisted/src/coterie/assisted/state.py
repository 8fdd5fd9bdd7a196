"""What stays with an organisation, and what it knows of the others."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.protocol.messages import Private
from coterie.core.tensors.appended import Appended


@dataclass(frozen=True)
class Places:
    """Cells of an organisation's matrix, as its peers may call them.

    Attributes:
        rows: ``(n,)`` int32 numbers that all organisations give to a common user (or item).
        columns: ``(n,)`` int32 numbers that the organisation gives to its own items (or users).
    """

    rows: Tensor
    columns: Tensor

    def __len__(self) -> int:
        return self.rows.numel()


@dataclass(frozen=True)
class Peer:
    """What an organisation knows of another one.

    Attributes:
        id: its number.
        columns: number of its columns.
        rows: ``(c,)`` int32 numbers of the rows that both have.
        cells: where it has residuals, in these rows.
        queries: where else it wants outputs.
    """

    id: int
    columns: int
    rows: Tensor
    cells: Places
    queries: Places


@dataclass(frozen=True)
class Model:
    """f_k^t, which never leaves.

    Attributes:
        round: t.
        params: of the network.
    """

    round: int
    params: Params


@dataclass(frozen=True)
class RoundChoice:
    """What an organisation chose in a round.

    Attributes:
        round: t.
        models: ``(J,)`` int64 whose outputs it had, its own first.
        eta: η_k^t, ``()``.
        weights: w_k^t, ``(J,)``.
    """

    round: int
    models: Tensor
    eta: Tensor
    weights: Tensor


@dataclass(frozen=True)
class OrganisationState(Private):
    """What stays with an organisation.

    Attributes:
        shared: ``(m_k,)`` int32 numbers of common rows, -1 where a row is nobody else's.
        peers: the others.
        models: f_k^1 to f_k^t.
        choices: η and w of rounds 1 to t.
        scores: ``(n,)`` F_k^t at its training cells.
        held: F_k^t at its validation cells.
        own: f_k^t at both, end to end.
        sent: ``(n,)`` its residuals of round t at all training cells as it protected them, where
            it fits these itself; else empty.
    """

    shared: Tensor
    peers: Appended[Peer]
    models: Appended[Model]
    choices: Appended[RoundChoice]
    scores: Tensor
    held: Tensor
    own: Tensor
    sent: Tensor
