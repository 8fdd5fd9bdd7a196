"""The interface of client-side continual-learning methods; the base class is fine-tuning (FT)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.continual.backbones import Backbone, Params
from coterie.continual.local_training import ChooseReplay, Pull
from coterie.continual.messages import ClientState, ItemTable, LookBack
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.tensors.keys import Key

Memory = dict[str, Any]


class Retention:
    """Keep nothing: fine-tuning, L_u = mean over the batch of BCE(sigmoid(s_ui), y_ui).

    All methods share the base block; each overrides only what it adds. Everything is stacked over
    the C users of a chunk and must treat each user alone.

    Attributes:
        corrects: whether scores are corrected before items are ranked.
        looks_back: whether `replay` or `pull` may say something in all blocks but the first.
    """

    corrects: ClassVar[bool] = False
    looks_back: ClassVar[bool] = False

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def empty(self, params: Params) -> Memory:
        """Make the memory of newcomers."""
        return {}

    def at_block_start(self, mine: ClientState, down: LookBack, data: UserRows) -> Memory:
        """Look back before a new block; ``mine.best`` is of the last one's best round."""
        return mine.memory

    def before_training(
        self, mine: ClientState, down: ItemTable, data: UserRows, key: Key
    ) -> Memory:
        """Bring the memory up to date before a round's local training; keys are ``(C,)``."""
        return mine.memory

    def at_block_end(self, mine: ClientState, table: Tensor, data: Any, key: Key) -> Memory:
        """Note what is worth keeping of a finished block, whose best item table is ``(n, d)``.

        In ``mine`` are already the parameters that are carried on.
        """
        return mine.memory

    def rehearses(self, block: int) -> bool:
        """Whether `replay` or `pull` may say something in a block."""
        return self.looks_back and block > 0

    def replay(self, mine: ClientState, round: int, key: Key) -> ChooseReplay | None:
        """Say what is practised again beside each batch; None for nothing."""
        return None

    def pull(self, mine: ClientState, down: ItemTable, item_lr: float) -> Pull | None:
        """Say where parameters are pulled to; None for nowhere."""
        return None

    def correct(self, scores: Tensor, mine: ClientState, table: Tensor) -> Tensor:
        """Correct the scores ``(C, n)`` before items are ranked."""
        return scores


def score_items(backbone: Backbone, params: Params, table: Tensor) -> Tensor:
    """Scores of all items, ``(C, n)``."""
    vector, offset = backbone.query(params)
    return torch.addmm(offset[:, None], vector, table.T)
