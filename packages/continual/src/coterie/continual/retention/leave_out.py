"""The client's memory as a list of what not to recommend again; no part of the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.metrics.ranking import top_k
from coterie.core.tensors.ragged import Ragged

FREE = -1  # as `top_k` fills up


class LeaveOut:
    """Note what the user trained on and the model would recommend first, and rank it no more.

    Half of what a model ranks highest for a user of several blocks, and more of S_u, are items that
    the user had in earlier ones. They are never a right answer where items are consumed once, and
    distilling S_u keeps them on top. A list of N numbers a block costs no training, no traffic, and
    no more room than S_u.

    Args:
        length: N, most items noted of a block; 0 notes none.
        n_blocks: of the stream.

    Example:
        >>> once = LeaveOut(length=2, n_blocks=1)
        >>> train, nobody = Ragged.from_lists([[0, 1]]), torch.zeros(1, dtype=torch.int64)
        >>> scores = torch.tensor([[0.1, 0.9, 0.8]])
        >>> noted = once.noted(once.empty(1), nobody, scores, train)
        >>> noted.tolist(), once.rows(noted).tolists()
        ([[1, 0]], [[1, 0]])
    """

    def __init__(self, length: int, n_blocks: int) -> None:
        self.length, self.n_blocks = length, n_blocks

    def empty(self, n_users: int) -> Tensor:
        """Free places for the items of all blocks, ``(C, N · blocks)`` int32."""
        return torch.full((n_users, self.length * self.n_blocks), FREE, dtype=torch.int32)

    def noted(self, left_out: Tensor, blocks: Tensor, scores: Tensor, train: Ragged) -> Tensor:
        """Add the items of a block: of its train items the N that rank highest.

        Args:
            left_out: ``(C, W)``, as `empty` gives it.
            blocks: ``(C,)`` int64, blocks finished before this one.
            scores: ``(C, n)`` of all items by the block's best round.
            train: the users' train items of the block.
        """
        if not self.length:
            return left_out
        items = top_k(scores.nan_to_num(), self.length, ~train.mask(scores.shape[1]))
        places = blocks[:, None] * self.length + torch.arange(self.length)
        return left_out.scatter(1, places, items.to(left_out.dtype))

    def rows(self, left_out: Tensor) -> Ragged:
        """Items that are not ranked, a row for each user."""
        noted = left_out != FREE
        return Ragged.from_lengths(left_out[noted].long(), noted.sum(1))
