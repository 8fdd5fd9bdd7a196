"""The middle's part of the clients' adapters, which stays with the middle, and who mixes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from coterie.core.local_training.row_optimizer import RowState
from coterie.llm.mixing import Mixing


@dataclass(frozen=True)
class Part:
    """The middle's parameters of n clients.

    Attributes:
        rows: ``(n, d)``.
        optimizer: of n rows; None where it starts anew in every session.
    """

    rows: Tensor
    optimizer: RowState | None = None


@dataclass(frozen=True)
class Kept:
    """The middle's part of all clients after a round: itself, or where its server keeps it.

    Attributes:
        number: of the round that mixed it, from 1; 0 is what all start from.
        part: None where another process keeps it.
        run: by which that process tells runs apart, no part of a result.
        anew: whether the optimizer that is kept with it is not to be gone on with.
    """

    number: int = 0
    part: Part | None = None
    run: str = ""
    anew: bool = False


class ServerLayers(Protocol):
    """The middle as the coordinator sees it: it decides on weights, and never sees a row."""

    def begin(self) -> Kept:
        """What the part of all clients is before the first round."""

    def use(self, kept: Kept) -> None:
        """Let the clients' next sessions start from it; what they trained before is lost.

        Raises:
            UserError: it is not there.
        """

    def gram(self, ids: Tensor, changes: bool) -> Tensor:
        """Inner products of what the sessions of A clients trained, ``(A, A)`` float64.

        Args:
            ids: ``(A,)`` the clients.
            changes: of what training changed, in place of what it made.

        Raises:
            UserError: one of them has not finished.
        """

    def mix(self, kept: Kept, how: Mixing, number: int, *, floor: int, best: int) -> Kept:
        """Mix what was trained since ``kept`` came into use, and use it from then on.

        Args:
            kept: in use.
            how: who taught whom, with which weights.
            number: of the round, from 1.
            floor: the round of the newest checkpoint that is sure to be written: what is older
                than the newest of those up to it, but for ``best``, may be forgotten.
            best: of the round that is tested.
        """

    def anew(self, kept: Kept) -> Kept:
        """The same with the optimizer as before its first step."""
