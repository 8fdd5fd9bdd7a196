"""What a server half may do with its clients, what they reply, and what a round measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Aligned, AnyStep, D, ListStep, PerClient, Step, U
from coterie.core.protocol.replies import FoldedReplies, ListReplies, StackedReplies
from coterie.core.protocol.uploads import Fold, Folds
from coterie.core.tensors.keys import Key

V = TypeVar("V")
T = TypeVar("T")


def summed(change: dict[str, Tensor], shares: Tensor | None = None) -> dict[str, Tensor]:
    """Sum over the clients, Σ shares_i change_i.

    Args:
        change: of A clients by name, each ``(A, ...)``.
        shares: ``(A,)``; None = 1 each.

    Example:
        >>> summed({"w": torch.eye(2)}, torch.tensor([0.25, 0.75]))["w"].tolist()
        [0.25, 0.75]
    """
    if shares is None:
        return {name: value.sum(0) for name, value in change.items()}
    return {name: torch.tensordot(shares.to(v.dtype), v, 1) for name, v in change.items()}


# What a server half may do with its clients: choose some, and ask them for a step.

C = TypeVar("C", bound="Cohort")


class Cohort(ABC):
    """Clients that take part.

    Attributes:
        ids: ``(R,)`` ascending client ids.
        when: coordinates of the round.
        journal: takes what the round measures.
    """

    ids: Tensor
    when: tuple[int, ...]
    journal: Journal

    def __len__(self) -> int:
        return self.ids.numel()

    def sample(self: C, fraction: float, key: Key) -> C:
        """Draw a random part of the cohort, without replacement, at least one client."""
        if fraction >= 1.0 or len(self) == 0:
            return self
        return self.draw(max(1, round(fraction * len(self))), key)

    def draw(self: C, count: int, key: Key) -> C:
        """Draw so many clients of the cohort without replacement; the cohort, if it has no more."""
        if count >= len(self):
            return self
        draws = key.fold(self.ids).uniform(dtype=torch.float64)
        return self.part(torch.topk(draws, count, largest=False).indices.sort().values)

    @abstractmethod
    def part(self: C, index: Tensor) -> C:
        """The clients at the ascending positions ``index``, ``(K,)`` int64."""

    @abstractmethod
    def enrol(self) -> Tensor:
        """Let the newcomers of the cohort make their private state; return their ids."""

    @abstractmethod
    def crossed(self, step: str, direction: str, field: str, messages: int, size: int) -> None:
        """Enter into the ledger what crossed beside messages, such as activations."""

    @overload
    def ask(self, step: Step[D, U], down: D | Aligned[D]) -> StackedReplies[U]: ...
    @overload
    def ask(self, step: ListStep[D, U], down: D | PerClient[D]) -> ListReplies[U]: ...
    @overload
    def ask(
        self,
        step: AnyStep[D, U],
        down: D | Aligned[D] | PerClient[D],
        *,
        reduce: Folds[U, T],
    ) -> FoldedReplies[T]: ...
    def ask(
        self, step: AnyStep[Any, Any], down: Any, *, reduce: Folds[Any, Any] | None = None
    ) -> Any:
        """Ask every client for a step; a transaction per client.

        Each answer is guarded (a non-finite upload or private state is refused), committed (private
        state of accepted clients only), entered in the ledger, then folded into ``reduce`` or kept.
        Uploads whose step says that their training ``diverged`` are left out.

        Args:
            step: what is asked for.
            down: the message that all clients receive, or `PerClient` or `Aligned` ones.
            reduce: folds uploads into a sum at once, so that memory is bounded by the chunk.

        Raises:
            TypeError: the clients have no such step, or ``reduce`` is no `Fold`.
        """
        if reduce is not None and not isinstance(reduce, Fold):
            raise TypeError(f"{type(reduce).__name__} is no Fold")
        return self._ask(step, down, reduce)

    def summed(self, change: dict[str, Tensor], shares: Tensor | None = None) -> dict[str, Tensor]:
        """Sum what a server has seen of every client: Σ shares_i change_i.

        Where the run has a rule against uploads that are made up, it stands in for the mean that
        is in this. Who folds by ``ask(..., reduce=...)`` need not know of it.

        Args:
            change: of A clients by name, each ``(A, ...)``.
            shares: ``(A,)``; None = 1 each.
        """
        return summed(change, shares)

    @abstractmethod
    def _ask(self, step: AnyStep[Any, Any], down: Any, fold: Fold | None) -> Any:
        """Do what `ask` says."""
