"""What stays with an organisation, and what crosses to others by a server that passes it on.

Nothing is averaged, and no model, loss function or rating leaves an organisation. Residuals and
outputs are of rated cells, and give ratings away (`coterie assisted attack`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.uploads import counted, measured
from coterie.core.protocol.messages import (
    Down,
    ListStep,
    Private,
    Report,
    Reveals,
    Up,
    carries,
    leaves,
)
from coterie.core.protocol.uploads import Number, Sized
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
class Met(Private):
    """What stays with an organisation that has met others.

    Attributes:
        shared: ``(m_k,)`` int32 numbers of common rows, -1 where a row is nobody else's.
        peers: the others.
        scores: ``(n,)`` F_k^t at its training cells; F⁰ where residuals are sent once.
    """

    shared: Tensor
    peers: Appended[Peer]
    scores: Tensor


@dataclass(frozen=True)
class OrganisationState(Met):
    """What stays with an organisation that assists others in every round.

    Attributes:
        models: f_k^1 to f_k^t.
        choices: η and w of rounds 1 to t.
        held: F_k^t at its validation cells.
        own: f_k^t at both, end to end.
        sent: ``(n,)`` its residuals of round t at all training cells as it protected them, where
            it fits these itself; else empty.
    """

    models: Appended[Model]
    choices: Appended[RoundChoice]
    held: Tensor
    own: Tensor
    sent: Tensor


PerPeer = dict[str, Tensor]
"""Number of an organisation -> values of cells, in the order in which they were named."""
PLACES = Number(1, dtype="int32")
"""Form of rows and columns of cells."""


@dataclass(frozen=True)
class Announcement(Up):
    """Whom an organisation knows: the set U_k or V_k, under names that say nothing."""

    rows: Tensor = leaves(  # (m_k,) int64
        "keyed hashes of its users (or items)",
        reveals=Reveals.IDENTITIES,
        expected=Number(1, dtype="int64"),
    )
    columns: Tensor = counted("number of its items (or users)")  # () int64


@dataclass(frozen=True)
class Alignment(Down):
    """Who of an organisation's users (or items) is known to others as well."""

    numbers: Tensor = carries("numbers of common rows, -1 where a row is nobody else's")  # (m_k,)


@dataclass(frozen=True)
class Pattern(Up):
    """Where an organisation has ratings, in common rows only."""

    cells: Places = leaves(
        "cells that residuals will be of", reveals=Reveals.PATTERN, expected=PLACES
    )
    queries: Places = leaves(
        "held-out cells it wants outputs for; none where residuals are sent once",
        reveals=Reveals.PATTERN,
        expected=PLACES,
    )


@dataclass(frozen=True)
class Peers(Down):
    """The other organisations."""

    cells: dict[str, Places] = carries("cells of residuals to come", relays=True)
    queries: dict[str, Places] = carries("held-out cells to answer for", relays=True)
    rows: PerPeer = carries("numbers of the rows in common with each")
    columns: dict[str, int] = carries("number of columns of each")


@dataclass(frozen=True)
class Turn(Down):
    """Begin of a round."""

    round: int = carries("t")
    cells: int = carries("number of residuals that are expected")


@dataclass(frozen=True)
class Residuals(Up):
    """Pseudo-residuals r_k = -∂L_k/∂F of rated cells in common rows (Eq. 5)."""

    values: Tensor = leaves(  # (n_k,)
        "pseudo-residuals of rated cells in common rows",
        reveals=Reveals.RESIDUALS,
        depends_on={"scores", "shared"},
        expected=Sized(field="cells"),
    )


@dataclass(frozen=True)
class Received(Down):
    """The residuals of others, to be kept: they come once, and its own with them (protect.own)."""

    residuals: PerPeer = carries("pseudo-residuals of each in common rows", relays=True)


@dataclass(frozen=True)
class PseudoTargets(Down):
    """The residuals of others, to be fitted together with an organisation's own."""

    residuals: PerPeer = carries("pseudo-residuals of each in common rows", relays=True)
    round: int = carries("t")
    cells: dict[str, int] = carries("number of outputs that each waits for")
    roster: Tensor | None = carries(  # (R,) int64
        "who answers, and so shares masks (protect.sum)", default=None
    )


_FITTED = {"scores", "shared", "peers", "sent"}


@dataclass(frozen=True)
class Fits(Up):
    """Outputs f_k of the model of a round at the cells that others asked for, in one of two forms.

    Behind masks nobody sees them: who asked learns the sum of all peers' outputs, the server none.
    """

    values: PerPeer | None = leaves(
        "outputs at the cells of each peer, in common rows",
        reveals=Reveals.FITS,
        depends_on=_FITTED,
        expected=Sized(field="cells"),
        relays=True,
    )
    masked: PerPeer | None = leaves(
        "in their place (protect.sum): outputs behind masks that cancel in the sum over peers",
        reveals=Reveals.SEALED,
        depends_on=_FITTED,
        expected=Sized(field="cells", dtype="int64"),
    )


@dataclass(frozen=True)
class Total:
    """A sum of what peers sent behind masks, less the mask of its receiver.

    Attributes:
        values: ``(…, n)`` int64, multiples of 2^-20 modulo 2^64.
        senders: ``(S,)`` int64 numbers of the peers.
        attempt: how often they had been asked before.
    """

    values: Tensor
    senders: Tensor
    attempt: int = 0


@dataclass(frozen=True)
class Outputs(Down):
    """What the models of others say of an organisation's cells."""

    values: PerPeer = carries("outputs of each at its cells", relays=True)
    round: int = carries("t")
    total: Total | None = carries(
        "in their place (protect.sum): the sum over peers, which only it can read; none where a "
        "peer did not answer",
        default=None,
    )


_SCORED = {"scores", "held", "choices", "models", "own", "peers", "shared"}


@dataclass(frozen=True)
class Progress(Report):
    """What an organisation chose in a round, and how well it fits its own ratings now."""

    loss: Tensor = measured("mean training loss L_k", _SCORED)  # ()
    residual: Tensor = measured("root mean square of its residuals", _SCORED)  # ()
    eta: Tensor = measured("rate η_k", _SCORED)  # ()
    weights: Tensor = measured("weights w_k, its own first", _SCORED, Number(1))  # (J,)
    cells: Tensor = counted("number of its training cells")  # () int64


ALIGN = ListStep("align", None, Announcement)
PATTERN = ListStep("pattern", Alignment, Pattern)
MEET = ListStep("meet", Peers, None)
RESIDUAL = ListStep("residual", Turn, Residuals)
RECEIVE = ListStep("receive", Received, None)
FIT = ListStep("fit", PseudoTargets, Fits)
COMBINE = ListStep("combine", Outputs, Progress)
