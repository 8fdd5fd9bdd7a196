"""Examples of next-item prediction, and what organisations hold of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.tensors import tree
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
        return tree.take(self, index)


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
        return tree.take(self, index)


@dataclass(frozen=True)
class OwnData:
    """Data of one organisation; see `OrganisationData`."""

    id: int
    train: Examples
    valid: Queries
    test: Queries
    had: Tensor
    newer: Tensor


@dataclass(frozen=True)
class OrganisationData:
    """Data of K organisations, each of which is a client; in list form.

    Attributes:
        ids: ``(K,)`` int64, ascending client numbers.
        train: examples of each; may be none.
        valid: validation queries of each; may be none.
        test: test queries of each; may be none.
        had: ``(m,)`` int64 of each, the train items of its users, one entry an interaction.
        newer: the same of what they had since, before the test.
    """

    ids: Tensor
    train: list[Examples]
    valid: list[Queries]
    test: list[Queries]
    had: list[Tensor]
    newer: list[Tensor]

    def __len__(self) -> int:
        return self.ids.numel()

    def __getitem__(self, place: int) -> OwnData:
        """Data of the client at a position."""
        return OwnData(int(self.ids[place]), *(part[place] for part in self._parts))

    def take(self, index: Tensor) -> OrganisationData:
        """Data of the clients at the positions ``index``, ``(m,)`` int64."""
        parts: Any = ([part[c] for c in index.tolist()] for part in self._parts)
        return OrganisationData(self.ids[index], *parts)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.train, self.valid, self.test, self.had, self.newer
