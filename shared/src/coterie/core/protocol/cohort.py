"""What a server half may do with its clients, what they reply, and what a round measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import AnyStep, D, ListStep, Step, U
from coterie.core.protocol.uploads import Fold, Folds
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

V = TypeVar("V")
T = TypeVar("T")


@dataclass(frozen=True)
class Replies:
    """Who answered.

    Attributes:
        ids: ``(A,)`` ascending, the clients whose answer counts.
        failed: client id -> why its answer was refused or left out.
    """

    ids: Tensor
    failed: dict[int, str]

    def __len__(self) -> int:
        return self.ids.numel()


@dataclass(frozen=True)
class StackedReplies(Replies, Generic[V]):
    """Uploads of clients in the stacked form.

    Attributes:
        up: the uploads stacked in the order of ``ids``; None where nobody answered, or the step has
            no upload.
    """

    up: V | None = None


@dataclass(frozen=True)
class ListReplies(Replies, Generic[V]):
    """Uploads of clients in the list form.

    Attributes:
        ups: client id -> its upload, in the order of ``ids``.
    """

    ups: dict[int, V]


@dataclass(frozen=True)
class FoldedReplies(Replies, Generic[T]):
    """What was folded of the uploads.

    Attributes:
        total: what the fold made of them; None where nobody answered.
    """

    total: T | None = None


# What a server half may do with its clients: choose some, and ask them for a step.

C = TypeVar("C", bound="Cohort")


@dataclass(frozen=True)
class PerClient(Generic[D]):
    """Messages that differ from client to client, in the list form.

    Attributes:
        messages: client id -> its message. Clients that are not asked may be in it.
    """

    messages: Mapping[int, D]


@dataclass(frozen=True)
class Aligned(Generic[D]):
    """A message that differs from client to client, in the stacked form.

    Attributes:
        ids: ``(R,)`` ascending ids of the clients it is for. Clients that are not asked may be in.
        message: stacked over them.
    """

    ids: Tensor
    message: D

    def of(self, ids: Tensor) -> D:
        """The messages of the clients ``ids``, ``(K,)``, in that order.

        Raises:
            KeyError: there is none for one of them.
        """
        places = torch.searchsorted(self.ids, ids).clamp_max(max(self.ids.numel() - 1, 0))
        if not self.ids.numel() or bool((self.ids[places] != ids).any()):
            raise KeyError(f"no message for some of the clients {ids.tolist()[:5]}")
        return tree.take(self.message, places)


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

    @abstractmethod
    def _ask(self, step: AnyStep[Any, Any], down: Any, fold: Fold | None) -> Any:
        """Do what `ask` says."""
