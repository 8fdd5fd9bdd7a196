"""What crosses the boundary in federated continual recommendation, and what stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from coterie.core.metrics.ranking_report import RankingReport, Split
from coterie.core.protocol.messages import (
    EVERYTHING,
    Down,
    Private,
    Reveals,
    Step,
    Up,
    carries,
    leaves,
)
from coterie.core.protocol.uploads import Like, Number, Share
from coterie.core.tensors.rows import Rows
from coterie.core.wire.annotations import Nest

_BEHIND = {"params", "memory", "blocks"}  # private fields that training depends on


@dataclass(frozen=True)
class ItemTable(Down):
    """The public item table Q_g."""

    items: Tensor = carries("item table Q_g")  # (n_items, d)
    old: Tensor | None = carries(  # (n_old, d)
        "item table of the end of the previous block, for methods that pull to it", default=None
    )
    round: int = carries("r within the block, from 0", default=0)
    block: int = carries("t, number of the block", default=0)


@dataclass(frozen=True)
class LookBack(Down):
    """What clients read of earlier blocks before they train on a new one; sent once a block.

    A method gets only the tables that it reads: none, if all it does is draw parameters anew.
    """

    block: int = carries("t, number of the new block")

    items: Tensor | None = carries(  # (n_old, d)
        "the previous block's best item table, for methods that distil it", default=None
    )
    slow: Tensor | None = carries(  # (n_old, d)
        "stability proxy of the item table (SPP)", default=None
    )
    fast: Tensor | None = carries(  # (n_old, d)
        "plasticity proxy of the item table (SPP)", default=None
    )


@dataclass(frozen=True)
class EvaluationTable(Down):
    """The item table to be evaluated."""

    items: Tensor = carries("item table")  # (n_items, d)
    split: Split = carries(
        "on which part: valid, or test for the parameters of the best round", default="valid"
    )


@dataclass(frozen=True)
class EndedBlock(Down):
    """A block is over."""

    items: Tensor = carries("item table Q_g of its best round")  # (n_items, d)
    block: int = carries("t, its number")


@dataclass(frozen=True)
class ItemUpdate(Up):
    """A client's trained item table, as its difference from the table received."""

    items: Rows = leaves(
        "change of the item rows, Q_u - Q_g",
        reveals=Reveals.ITEMS_TOUCHED,
        depends_on=_BEHIND,
        expected=Like("items"),
    )
    pull: Tensor | None = leaves(  # (C,)
        "share by which all old rows moved to the previous block's table (Reg)",
        reveals=Reveals.STEPS,
        depends_on={"blocks"},
        expected=Share(),
    )
    loss: Tensor | None = leaves(  # (C,)
        "mean training loss", reveals=Reveals.MEASUREMENT, depends_on=_BEHIND, expected=Number()
    )
    replayed: Tensor | None = leaves(  # (C,)
        "number of replayed items, mean over batches",
        reveals=Reveals.MEASUREMENT,
        depends_on=_BEHIND,
        expected=Number(),
    )


@dataclass(frozen=True)
class StreamReport(RankingReport):
    """Quality of recommendations; in the test also with items of earlier blocks left out.

    These are neither ranked nor to be found. Columns as in `RankingReport`.
    """

    recall_unseen: Tensor | None = leaves(  # (C, K) float64
        "Recall@k without items of earlier blocks",
        reveals=Reveals.MEASUREMENT,
        depends_on=EVERYTHING,
        expected=Number(axes=1),
    )
    ndcg_unseen: Tensor | None = leaves(  # (C, K) float64
        "NDCG@k without items of earlier blocks",
        reveals=Reveals.MEASUREMENT,
        depends_on=EVERYTHING,
        expected=Number(axes=1),
    )

    def by_name(self, lengths: Sequence[int]) -> dict[str, Tensor]:
        """Give the columns by name, those of the second protocol as ``ndcg@20_unseen``."""
        found = super().by_name(lengths)
        if self.recall_unseen is not None and self.ndcg_unseen is not None:
            unseen = RankingReport(self.recall_unseen, self.ndcg_unseen).by_name(lengths)
            found |= {f"{name}_unseen": values for name, values in unseen.items()}
        return found


@dataclass(frozen=True)
class ClientState(Private):
    """A user's private state Φ_u and memory; stacked over C users.

    Attributes:
        params: the backbone's private parameters, each ``(C, ...)``.
        best: the same at the block's best validation round.
        memory: what the method remembers of earlier blocks, each ``(C, ...)``; ``(C, 0)`` before
            it remembers anything.
        blocks: ``(C,)`` int64, number of blocks the user has finished; 0 = a new user.
        last: ``(C,)`` int64, number of the newest of them; -1 for a new user.
        left_out: ``(C, W)`` int32 items that are not to be recommended again, -1 for a free place;
            W = 0 where the memory is not used so.
    """

    params: dict[str, Tensor]
    best: dict[str, Tensor]
    memory: dict[str, Nest]
    blocks: Tensor
    last: Tensor
    left_out: Tensor


START_BLOCK = Step("start_block", LookBack, None)
UPDATE = Step("update", ItemTable, ItemUpdate)
EVALUATE = Step("evaluate", EvaluationTable, StreamReport)
KEEP_BEST = Step("keep_best", None, None)
END_BLOCK = Step("end_block", EndedBlock, RankingReport)
