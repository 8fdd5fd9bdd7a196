"""What clients reply to an ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

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
