"""KD: distil the previous model on its own top-N list."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.continual.backbones import Backbone, Params
from coterie.continual.local_training import ChooseReplay, Replay
from coterie.continual.messages import ClientState, LookBack
from coterie.continual.retention.base import Memory, Retention, score_items
from coterie.continual.settings import ReplaySettings
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.metrics.ranking import top_k
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


class Distillation(Retention):
    """Replay the whole list S_u of N remembered items (baseline KD, and F³CRec w/o a.r.m).

    S_u is the top N of the previous model over the old items (Eq. 1), the teacher's probability
    y_old = sigmoid(s_old) is frozen, and

        L = L_Rec + λ_KD mean over S_u of -[y_old log y + (1 - y_old) log(1 - y)].

    The paper prints Eq. 5 as a sum without the minus sign; its code takes the mean with it, the
    default here (`reduction`, `sign`). New users have no list and no such term.
    """

    looks_back = True

    def __init__(self, backbone: Backbone, settings: ReplaySettings) -> None:
        super().__init__(backbone)
        self.settings = settings

    def empty(self, params: Params) -> Memory:
        """No list yet, and no room for one; with one, both are ``(C, N)``."""
        first = next(iter(params.values()))
        shape = (first.shape[0], 0)
        return {"items": torch.zeros(shape, dtype=torch.int32), "taught": first.new_zeros(shape)}

    def at_block_start(self, mine: ClientState, down: LookBack, data: UserRows) -> Memory:
        """List S_u and the teacher's probabilities from θ_u of the last block (Eq. 1).

        The public code keeps the list, and has its probabilities from the newest table: of users
        of the last block with the parameters of its best round, of those who missed it with the
        ones that they carry.
        """
        assert down.items is not None
        teacher, items = mine.best, mine.memory["items"]
        if self.settings.remember == "last-seen":
            teacher = tree.where_rows(mine.last < down.block - 1, mine.params, mine.best)
        scores = score_items(self.backbone, teacher, down.items)
        if self.settings.remember == "block-start":
            items = self._best(scores)
        return {"items": items, "taught": torch.sigmoid(scores.gather(1, items.long()))}

    def at_block_end(self, mine: ClientState, table: Tensor, data: object, key: Key) -> Memory:
        """List S_u now, if the list is that of the last block seen (public code)."""
        if self.settings.remember == "block-start":
            return mine.memory
        return mine.memory | {"items": self._best(score_items(self.backbone, mine.best, table))}

    def _best(self, scores: Tensor) -> Tensor:
        """Top N, ``(C, N)`` int32. Users whose scores are not finite are refused later, alone."""
        return top_k(scores.nan_to_num(), self.settings.top_n).int()

    def replay(self, mine: ClientState, round: int, key: Key) -> ChooseReplay | None:
        """Replay of old users, for every batch."""
        if not bool((mine.blocks > 0).any()):
            return None

        def choose(steps: Tensor, users: Tensor, scores: Tensor) -> Replay:
            old = (mine.blocks[users] > 0).nonzero().flatten()
            who = users[old]
            items, taught = mine.memory["items"][who].long(), mine.memory["taught"][who]
            chosen = self.choose(items, scores[old], key.take(who).fold("replay", steps[old]))
            return Replay(old, items, taught, self._weights(chosen, taught.dtype))

        return choose

    def choose(self, items: Tensor, scores: Tensor, key: Key) -> Tensor:
        """Which of the remembered items are replayed, ``(A, N)`` bool: here all."""
        return torch.ones_like(items, dtype=torch.bool)

    def _weights(self, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        """λ_KD, shared among the m replayed items for the mean (Eq. 5 and 6)."""
        weights = self.settings.lambda_kd * chosen.to(dtype)
        if self.settings.reduction == "mean":
            weights /= chosen.sum(1, keepdim=True).clamp_min(1)
        return weights if self.settings.sign == "minus" else -weights
