"""A user's data of one block: all that a client may read while that block lasts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.ragged import Ragged


@dataclass(frozen=True)
class BlockData:
    """Items of C users in the current block, split; nothing of earlier blocks is in here.

    Attributes:
        ids: ``(C,)`` int64, ascending user numbers.
        train: item numbers of each user.
        valid: the same for validation.
        test: the same for the test.
    """

    ids: Tensor
    train: Ragged
    valid: Ragged
    test: Ragged

    def take(self, index: Tensor) -> BlockData:
        """Data of the users at the positions ``index``, ``(K,)`` int64."""
        return BlockData(
            self.ids[index], self.train.take(index), self.valid.take(index), self.test.take(index)
        )
