"""What the server of organisations knows between two rounds, and what a round brings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from coterie.core.federation.selection import NO_ROUND, BestRound
from coterie.llm.split.part import Kept


@dataclass(frozen=True)
class ServerState:
    """What the server knows.

    Attributes:
        rows: ``(K, d)`` adapter R_c of every client; of a split model the part that the client
            holds.
        best: the same at the best validation round.
        round: t, rounds done.
        chosen: which round ``best`` is of, and its validation Recall@10.
        own: strength of the clients' own counts in their scores; 0 without them.
        counts: ``(n_items,)`` float64 that the expert's bias starts from, where organisations count
            together.
        middle: the other part of all clients, of a split model.
        best_middle: that of ``best``.
        stage: of fine-tuning, from 1.
        began: rounds done when it began.
        best_stage: that of ``best``.
        silent: ``(K,)`` bool, clients that turned out to have no data: in FedAMP nobody hears them.
    """

    rows: Tensor
    best: Tensor
    round: int = 0
    chosen: BestRound = NO_ROUND
    counts: Tensor | None = None
    own: float = 0.0
    middle: Kept | None = None
    best_middle: Kept | None = None
    stage: int = 1
    began: int = 0
    best_stage: int = 1
    silent: Tensor | None = None


@dataclass(frozen=True)
class Trained:
    """What the clients that answered brought in a round.

    Attributes:
        ids: ``(A,)`` their numbers.
        rows: ``(A, d)`` adapters after local training; of a split model the clients' part.
        changes: ``(A, d)`` what it changed in them.
        losses: ``(A,)`` mean training losses L_c.
        sizes: ``(A,)`` int64, numbers of examples |D_c|.
        round: t, from 0.
        failed: who was asked and did not answer.
    """

    ids: Tensor
    rows: Tensor
    changes: Tensor
    losses: Tensor
    sizes: Tensor
    round: int
    failed: Collection[int] = ()
