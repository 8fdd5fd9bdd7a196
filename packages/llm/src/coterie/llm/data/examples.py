"""Examples of next-item prediction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class Examples:
    """Histories and the item that came next, n of them.

    Attributes:
        history: n rows of item numbers, oldest first, each of at least one and at most
            ``max_history`` items.
        target: ``(n,)`` int64, the next item.
    """

    history: Ragged
    target: Tensor  # (n,) int64

    def __len__(self) -> int:
        return self.target.numel()

    def take(self, index: Tensor) -> Examples:
        """The examples at the positions ``index``, ``(m,)`` int64."""
        return Examples(self.history.take(index), self.target[index])


@dataclass(frozen=True)
class Queries:
    """Users to recommend to: what they had, what must not be listed, what is to be found.

    Attributes:
        user: ``(n,)`` int64 user numbers.
        history: n rows of item numbers, oldest first, the newest of what the user had.
        seen: n rows, everything the user had: left out of the ranking.
        targets: n rows of distinct items to be found, none of them seen.
    """

    user: Tensor  # (n,) int64
    history: Ragged
    seen: Ragged
    targets: Ragged

    def __len__(self) -> int:
        return self.user.numel()

    def take(self, index: Tensor) -> Queries:
        """The users at the positions ``index``, ``(m,)`` int64."""
        return Queries(
            self.user[index],
            self.history.take(index),
            self.seen.take(index),
            self.targets.take(index),
        )
