"""What every recommender of users and items has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.models.batches import Pairs, Triples


class Recommender(nn.Module, ABC):
    """A network that scores items for users; scores are logits.

    Attributes:
        n_users: number of users.
        n_items: number of items.
    """

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.n_users = n_users
        self.n_items = n_items

    @abstractmethod
    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs.

        Args:
            user: int64, any shape.
            item: int64, of a shape that broadcasts with ``user``.

        Returns:
            Logits in the broadcast shape.
        """

    def item_scores(self, user: Tensor) -> Tensor:
        """Logits of all items for some users: ``(C,)`` int64 -> ``(C, n_items)``."""
        items = torch.arange(self.n_items, device=user.device)
        return self.score(user[:, None], items)

    def score_cells(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs that have users in common: cells in the rows of some users.

        Models for whom it is faster pass each vector once, not once for each pair it is in.

        Args:
            user: ``(B,)`` int64, all different.
            row: ``(n,)`` int64, position in ``user`` of each pair's user.
            item: ``(n,)`` int64.

        Returns:
            ``(n,)``.
        """
        return self.score(user[row], item)

    def loss(self, batch: Pairs | Triples) -> Tensor:
        """Mean loss of a batch, ``()``: `bce` for pairs, `bpr` for triples."""
        if isinstance(batch, Triples):
            positive = self.score(batch.user, batch.positive)
            return bpr(positive, self.score(batch.user, batch.negative))
        return bce(self.score(batch.user, batch.item), batch.label)


def bce(score: Tensor, label: Tensor) -> Tensor:
    """Pointwise loss: mean binary cross entropy of logits ``(B,)`` against labels ``(B,)``."""
    return F.binary_cross_entropy_with_logits(score, label)


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """Pairwise loss: mean of -ln sigmoid(s_ui - s_uj) (Rendle et al., UAI 2009, BPR-Opt).

    Args:
        positive: ``(B,)`` logits s_ui of items the user has.
        negative: ``(B,)`` logits s_uj of items the user has not.
    """
    return -F.logsigmoid(positive - negative).mean()


def table(rows: int, dim: int, sd: float = 0.01) -> nn.Embedding:
    """Embedding table ``(rows, dim)`` drawn from N(0, sd²) by torch's current generator."""
    return nn.Embedding.from_pretrained(torch.empty(rows, dim).normal_(0.0, sd), freeze=False)


def rows_of(table: nn.Embedding, number: Tensor | None) -> Tensor:
    """Rows of a table, ``(..., dim)``; None = all, which need no gathering."""
    rows: Tensor = table.weight if number is None else table(number)
    return rows
