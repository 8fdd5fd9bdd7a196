"""LightFR, the server half: bits of the item codes by vote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.cohort import Cohort
from coterie.core.methods.ranking.binary_codes import best_column, pack, unpack
from coterie.core.methods.ranking.lightfr import BitVotes, ItemCodes, LightFRClient, random_codes
from coterie.core.methods.ranking.server import RankingServer, RankingState
from coterie.core.methods.settings.ranking import LightFRSettings
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import TouchedRows


class VoteSum:
    """Sum votes over the clients in int64: those of int16 would overflow; implements `Fold`."""

    def add(self, total: dict[str, Any] | None, up: BitVotes) -> dict[str, Any]:
        """Add a chunk's votes."""
        votes = TouchedRows(up.votes.index, up.votes.values.long(), up.votes.n_rows).sum()
        loss = up.loss.sum()
        if total is None:
            return {"votes": votes, "loss": loss}
        return {"votes": total["votes"] + votes, "loss": total["loss"] + loss}


class LightFRServer(RankingServer):
    """Rounds of coordinate descent on the bits of the item codes, some bits a round in turn.

    Args:
        settings: of LightFR.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k.
    """

    def __init__(self, settings: LightFRSettings, n_items: int, lengths: Sequence[int]) -> None:
        super().__init__(settings, lengths)
        self.settings, self.n_items = settings, n_items

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw the item codes."""
        keys = key.fold("items").fold(torch.arange(self.n_items))
        return {"codes": random_codes(keys, self.settings.bits)}

    def train(self, state: RankingState, cohort: Cohort, key: Key) -> dict[str, Tensor]:
        """Ask for votes on this round's bits, and set them to what lowers the objective."""
        settings, packed = self.settings, state.public["codes"]
        first = state.round * settings.bits_per_round % settings.bits
        replies = cohort.ask("update", ItemCodes(packed, first), reduce=VoteSum())
        self.report_training(cohort, replies)
        if replies.total is None:
            return state.public
        codes = unpack(packed)
        balance = 4.0 * settings.bits**2 * settings.lam
        for place, vote in enumerate(replies.total["votes"].T):
            column = codes[:, first + place]
            codes[:, first + place] = best_column(vote, column, balance)
        return {"codes": pack(codes)}

    def table(self, public: dict[str, Tensor], split: str = "valid") -> ItemCodes:
        """Send the item codes."""
        return ItemCodes(public["codes"], split=split)


def lightfr(
    settings: LightFRSettings, n_items: int, lengths: Sequence[int]
) -> tuple[LightFRServer, LightFRClient]:
    """Build both halves.

    Args:
        settings: of LightFR.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k; the first decides on the best round.
    """
    return LightFRServer(settings, n_items, lengths), LightFRClient(settings, n_items, lengths)
