"""What trees hold beside tensors: values of several clients, what only grows, and handles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor

S = TypeVar("S", bound="Stacked")
G = TypeVar("G", bound="Growing")


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


class Handle:
    """Names something outside, such as a file; trees carry it as they carry numbers and text."""

    def digest(self) -> str:
        """Hash what is outside, by its content."""
        raise NotImplementedError(f"{type(self).__name__} must say what a digest of it is")


class Growing(ABC):
    """A sequence of trees that only grows, see `coterie.core.tensors.appended.Appended`.

    Walks go through its entries, but for those of an ask, which cost the same however many there
    are: they hand it on whole.
    """

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Number of entries."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """The entries, oldest first."""

    @abstractmethod
    def mapped(self: G, function: Callable[..., Any], *others: Any) -> G:
        """Apply ``function`` to every entry (and the same places of others)."""
