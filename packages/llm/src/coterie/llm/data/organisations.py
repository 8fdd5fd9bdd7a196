"""What organisations hold: examples to train on, users to recommend to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.llm.data.examples import Examples, Queries


@dataclass(frozen=True)
class OwnData:
    """Data of one organisation.

    Attributes:
        id: its number.
        train: examples; may be none.
        valid: validation queries; may be none.
        test: test queries; may be none.
    """

    id: int
    train: Examples
    valid: Queries
    test: Queries


@dataclass(frozen=True)
class OrganisationData:
    """Data of K organisations, each of which is a client; in list form.

    Attributes:
        ids: ``(K,)`` int64, ascending client numbers.
        train: examples of each; may be none.
        valid: validation queries of each; may be none.
        test: test queries of each; may be none.
    """

    ids: Tensor
    train: list[Examples]
    valid: list[Queries]
    test: list[Queries]

    def __len__(self) -> int:
        return self.ids.numel()

    def __getitem__(self, place: int) -> OwnData:
        """Data of the client at a position."""
        return OwnData(int(self.ids[place]), self.train[place], self.valid[place], self.test[place])

    def take(self, index: Tensor) -> OrganisationData:
        """Data of the clients at the positions ``index``, ``(m,)`` int64."""
        chosen = index.tolist()
        return OrganisationData(
            self.ids[index],
            [self.train[place] for place in chosen],
            [self.valid[place] for place in chosen],
            [self.test[place] for place in chosen],
        )
