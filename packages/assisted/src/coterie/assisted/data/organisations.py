"""What organisations hold: rated cells of their part of a matrix, and what they know beside."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.interactions.cells import Cells
from coterie.core.data.interactions.domains import Domain


@dataclass(frozen=True)
class OwnDomain:
    """Data of one organisation; see `Organisations`.

    Attributes:
        id: number of the client.
        rows: ``(m,)`` int64 keyed hashes of its users (or items), by which organisations find the
            ones that they have in common.
        domain: its cells; the values are what its objective reads.
        secret: ``()`` int64 number that all organisations share and the server does not know, for
            masks; None where none are made.
    """

    id: int
    rows: Tensor
    domain: Domain
    secret: Tensor | None = None

    @property
    def train(self) -> Cells:
        """Cells to learn from."""
        return self.domain.train

    @property
    def valid(self) -> Cells:
        """Cells that choices are made by."""
        return self.domain.valid

    @property
    def test(self) -> Cells:
        """Cells that are looked at once, at the end."""
        return self.domain.test


@dataclass(frozen=True)
class Organisations:
    """Data of K organisations, each of which is a client; in list form.

    Attributes:
        ids: ``(K,)`` int64, ascending client numbers.
        each: their data.
    """

    ids: Tensor
    each: list[OwnDomain]

    @staticmethod
    def of(each: list[OwnDomain]) -> Organisations:
        """Number them as they come."""
        return Organisations(torch.tensor([one.id for one in each]), each)

    def __len__(self) -> int:
        return len(self.each)

    def __getitem__(self, place: int) -> OwnDomain:
        """Data of the client at a position."""
        return self.each[place]

    def take(self, index: Tensor) -> Organisations:
        """Data of the clients at the positions ``index``, ``(m,)`` int64."""
        return Organisations(self.ids[index], [self.each[place] for place in index.tolist()])
