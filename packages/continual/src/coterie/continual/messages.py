"""What crosses the boundary in federated continual recommendation, and what stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.protocol.messages import Down, Private, Reveals, Up, leaves
from coterie.core.tensors.rows import Rows


@dataclass(frozen=True)
class ItemTable(Down):
    """The public item table Q_g.

    Attributes:
        items: ``(n_items, d)``.
        old: ``(n_old, d)`` table of the end of the previous block, for methods that pull to it.
        round: r within the block, from 0.
    """

    items: Tensor
    old: Tensor | None = None
    round: int = 0


@dataclass(frozen=True)
class LookBack(Down):
    """What clients read of earlier blocks before they train on a new one; sent once a block.

    A method gets only the tables that it reads: none, if all it does is draw parameters anew.

    Attributes:
        items: ``(n_old, d)`` the previous block's best table, for methods that distil it.
        slow: ``(n_old, d)`` stability proxy of the item table (SPP).
        fast: ``(n_old, d)`` plasticity proxy of the item table (SPP).
    """

    items: Tensor | None = None
    slow: Tensor | None = None
    fast: Tensor | None = None


@dataclass(frozen=True)
class EvaluationTable(Down):
    """The item table to be evaluated.

    Attributes:
        items: ``(n_items, d)``.
        split: "valid", or "test" for the parameters of the best round.
    """

    items: Tensor
    split: str = "valid"


@dataclass(frozen=True)
class ItemUpdate(Up):
    """A client's trained item table, as its difference from the table received."""

    items: Rows = leaves(
        "change of the item rows, Q_u - Q_g",
        reveals=Reveals.ITEMS_TOUCHED,
        depends_on={"params", "memory", "blocks"},
    )
    pull: Tensor | None = leaves(  # (C,)
        "share by which all old rows moved to the previous block's table (Reg)",
        reveals=Reveals.STEPS,
        depends_on={"blocks"},
    )
    loss: Tensor | None = leaves(  # (C,)
        "mean training loss",
        reveals=Reveals.MEASUREMENT,
        depends_on={"params", "memory", "blocks"},
    )
    replayed: Tensor | None = leaves(  # (C,)
        "number of replayed items, mean over batches",
        reveals=Reveals.MEASUREMENT,
        depends_on={"params", "memory", "blocks"},
    )


@dataclass(frozen=True)
class Profile(Private):
    """A user's private state Φ_u and memory; stacked over C users.

    Attributes:
        params: the backbone's private parameters, each ``(C, ...)``.
        best: the same at the block's best validation round.
        memory: what the method remembers of earlier blocks, each ``(C, ...)``.
        blocks: ``(C,)`` int64, number of blocks the user has finished; 0 = a new user.
    """

    params: dict[str, Tensor]
    best: dict[str, Tensor]
    memory: dict[str, Any]
    blocks: Tensor
