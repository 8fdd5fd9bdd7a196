"""What a server half may do with its clients, what they reply, and what a round measured."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from coterie.core.errors import UserError
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


# What a round measured, handed to the loggers.


@dataclass
class Journal:
    """Numbers of the current round; the driver empties it after logging.

    Attributes:
        scalars: name -> value, such as ``eval/ndcg@20``.
        clients: name -> (ids, values), per-client measurements ``(R,)``.
        refused: ``(step, client, why)`` of answers that were left out.
        releases: ``(step, tensors)`` of asks in which clients uploaded what noise could cover, and
            in how many tensors: what a privacy budget counts.
        asked: step -> how many answers were asked for.
        unheard: step -> why answers were refused, and how many.
    """

    scalars: dict[str, float] = field(default_factory=dict)
    clients: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    refused: list[tuple[str, int, str]] = field(default_factory=list)
    releases: list[tuple[str, int]] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    unheard: dict[str, Counter[str]] = field(default_factory=dict)

    def scalar(self, name: str, value: float | Tensor) -> None:
        """Note one number."""
        self.scalars[name] = float(value)

    def known(self, name: str, value: float | Tensor) -> bool:
        """Note one number if it is one: NaN is what nobody measured, and stays out.

        Returns:
            Whether it was noted.
        """
        if math.isnan(value):
            return False
        self.scalar(name, value)
        return True

    def per_client(self, name: str, ids: Tensor, values: Tensor) -> None:
        """Note one number a client; both ``(R,)``, kept on the CPU, where loggers read them."""
        self.clients[name] = (ids.cpu(), values.cpu())

    def refuse(self, step: str, client: int, why: str) -> None:
        """Note an answer that was left out."""
        self.refused.append((step, client, why))

    def answered(self, step: str, asked: int, refused: dict[int, str]) -> None:
        """Note how many were asked, and whose answers were refused; not who tells of divergence."""
        self.asked[step] = self.asked.get(step, 0) + asked
        self.unheard.setdefault(step, Counter()).update(refused.values())

    def check_heard(self) -> None:
        """Check that somebody's answer to every step counts, where any was asked for.

        Raises:
            UserError: all of them were refused, as they would be in every round to come.
        """
        for step, asked in self.asked.items():
            why = self.unheard[step]
            if asked and why.total() == asked:
                reasons = "; ".join(f"{one} ({n} of {asked})" for one, n in why.most_common(3))
                raise UserError(
                    f"nobody's answer to '{step}' counts, so the run cannot go on: {reasons}; what "
                    "diverges wants a lower learning rate or clipped gradients, what has no loss "
                    "other samples"
                )

    def release(self, step: str, tensors: int) -> None:
        """Note an ask in which clients uploaded what noise could cover."""
        self.releases.append((step, tensors))

    def clear(self) -> None:
        """Forget the round."""
        self.scalars.clear()
        self.clients.clear()
        self.refused.clear()
        self.releases.clear()
        self.asked.clear()
        self.unheard.clear()


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
