"""What trees hold beside tensors: values of several clients (ragged rows too), and handles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.tensors.ordering import ascending

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


# Rows of unequal length, stored end to end.

LENGTH_BYTES = 8  # a row's length travels as int64


@dataclass(frozen=True)
class Ragged(Stacked):
    """One row of values per client, without padding.

    Row ``c`` is ``values[offsets[c]:offsets[c + 1]]``.

    Attributes:
        values: ``(n,)`` all rows end to end.
        offsets: ``(C + 1,)`` int64, ascending, from 0 to n.

    Example:
        >>> rows = Ragged.from_lists([[3, 1], [], [2]])
        >>> rows.lengths.tolist()
        [2, 0, 1]
        >>> rows.take(torch.tensor([2, 0])).tolists()
        [[2], [3, 1]]
    """

    values: Tensor  # (n,)
    offsets: Tensor  # (C + 1,) int64

    @staticmethod
    def from_lengths(values: Tensor, lengths: Tensor) -> Ragged:
        """Cut ``values`` into rows of ``lengths``, ``(C,)`` int64."""
        return Ragged(values, _offsets(lengths))

    @staticmethod
    def from_lists(rows: Sequence[Sequence[int]]) -> Ragged:
        """Build from Python lists, one a client."""
        flat = [value for row in rows for value in row]
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return Ragged(torch.tensor(flat, dtype=torch.int64), _offsets(lengths))

    @staticmethod
    def from_pairs(row: Tensor, value: Tensor, n_rows: int) -> Ragged:
        """Group ``value`` by ``row``; the order within a row is kept.

        Args:
            row: ``(n,)`` int64 in [0, n_rows), in any order.
            value: ``(n,)``.
            n_rows: number of rows C, empty ones included.
        """
        order = ascending(row, n_rows)
        lengths = torch.bincount(row, minlength=n_rows)
        return Ragged(value.index_select(0, order), _offsets(lengths))

    @staticmethod
    def end_to_end(parts: Sequence[Ragged]) -> Ragged:
        """Rows of all parts, one after the other."""
        values = torch.cat([part.values for part in parts])
        return Ragged.from_lengths(values, torch.cat([part.lengths for part in parts]))

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def n_clients(self) -> int:
        """Number of rows C."""
        return len(self)

    @cached_property
    def lengths(self) -> Tensor:
        """Row lengths, ``(C,)`` int64."""
        return self.offsets[1:] - self.offsets[:-1]

    @cached_property
    def rows(self) -> Tensor:
        """Row number of every value, ``(n,)`` int64."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    @cached_property
    def positions(self) -> Tensor:
        """Position of every value within its row, ``(n,)`` int64."""
        return torch.arange(self.values.numel()) - self.offsets[:-1].repeat_interleave(self.lengths)

    def take(self, index: Tensor) -> Ragged:
        """Rows ``index`` (``(K,)`` int64), in that order, copied into a new Ragged."""
        lengths = self.lengths[index]
        offsets = _offsets(lengths)
        shift = (self.offsets[:-1][index] - offsets[:-1]).repeat_interleave(lengths)
        return Ragged(self.values[torch.arange(int(offsets[-1])) + shift], offsets)

    def concatenate(self, other: Ragged) -> Ragged:
        """Rows of both, one after the other."""
        offsets = torch.cat([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Ragged(torch.cat([self.values, other.values]), offsets)

    def beside(self, other: Ragged) -> Ragged:
        """Every row with the other's row behind it.

        Example:
            >>> Ragged.from_lists([[3, 1], []]).beside(Ragged.from_lists([[4], [2]])).tolists()
            [[3, 1, 4], [2]]
        """
        rows = torch.cat([self.rows, other.rows])
        return Ragged.from_pairs(rows, torch.cat([self.values, other.values]), len(self))

    def finite(self) -> Tensor:
        """Which rows hold no NaN or infinity, ``(C,)`` bool."""
        broken = torch.zeros(len(self), dtype=torch.int64)
        if self.values.is_floating_point():
            bad = (~self.values.isfinite()).reshape(len(self.values), -1).any(1)
            broken.index_add_(0, self.rows, bad.long())
        return broken == 0

    def nbytes(self) -> Tensor:
        """Bytes of each row on the wire, ``(C,)`` int64: its values and its length."""
        width = self.values[:1].numel() if len(self.values) else 1
        return self.lengths * (width * self.values.element_size()) + LENGTH_BYTES

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        """What callers derived from the rows and want to find again, kept as long as the rows."""
        return {}

    def mask(self, n_columns: int) -> Tensor:
        """Boolean membership table ``(C, n_columns)``."""
        table = torch.zeros(len(self), n_columns, dtype=torch.bool)
        table.view(-1).index_fill_(0, self.rows * n_columns + self.values, True)
        return table

    def tolists(self) -> list[list[int]]:
        """Python lists, one a client."""
        return [part.tolist() for part in torch.split(self.values, self.lengths.tolist())]


def _offsets(lengths: Tensor) -> Tensor:
    offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets
