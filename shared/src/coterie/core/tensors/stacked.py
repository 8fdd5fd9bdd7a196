"""Values of several clients that no tensor with a client axis can hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from torch import Tensor

S = TypeVar("S", bound="Stacked")


class Stacked(ABC):
    """Something for each of C clients: rows of unequal length, changes of a table's rows.

    A tensor ``(C, ...)`` is the plain form of the same; trees treat the two alike. Implement it as
    a frozen dataclass, so that the tensors it is made of can be found.
    """

    @property
    @abstractmethod
    def n_clients(self) -> int:
        """Number of clients C."""

    @abstractmethod
    def take(self: S, index: Tensor) -> S:
        """The clients at the positions ``index``, ``(K,)`` int64, copied."""

    @abstractmethod
    def concatenate(self: S, other: S) -> S:
        """The clients of both, one after the other."""

    @abstractmethod
    def finite(self) -> Tensor:
        """Which clients' values hold no NaN or infinity, ``(C,)`` bool."""

    @abstractmethod
    def nbytes(self) -> Tensor:
        """Bytes of each client's part on the wire, ``(C,)`` int64."""
