"""What the coordinator lends the middle for a session, and gets back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import tree


@dataclass(frozen=True)
class Part:
    """The middle's parameters of n clients.

    Attributes:
        rows: ``(n, d)``.
        optimizer: of n rows; None where it starts anew in every session.
    """

    rows: Tensor
    optimizer: RowState | None = None


class Borrower(Protocol):
    """The middle as the coordinator sees it, see `coterie.llm.split.middle.Middle`."""

    def clear(self) -> None:
        """Forget all that was lent and trained."""

    def lend(self, client: int, part: Part) -> None:
        """Lend one client's part, n = 1."""

    def trained(self, client: int) -> Part:
        """Give back what a client's session made of it, n = 1."""
        ...


def lend(middle: Borrower, ids: Sequence[int], part: Part) -> None:
    """Lend the parts of n clients in the place of all that was lent before."""
    middle.clear()
    for place, client in enumerate(ids):
        middle.lend(client, tree.take(part, torch.tensor([place])))


def given_back(middle: Borrower, ids: Sequence[int]) -> Part:
    """Get back what the sessions of n clients, at least one, made of their parts.

    Raises:
        UserError: one of them has not finished.
    """
    first, *others = (middle.trained(client) for client in ids)
    for part in others:
        first = tree.concatenate(first, part)
    return first
