"""Robust rules: what stands in for the mean of C uploads of which a minority may be made up.

Median and trimmed mean (Yin et al., ICML 2018) look at each number by itself, Krum and Multi-Krum
(Blanchard et al., NIPS 2017) at whole uploads. Of changes of a table's rows, which most clients
leave as they are, each row is compared among those who changed it: over all clients the median
would be 0 in every row. So a row that attackers alone change is theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.rows import DenseRows, Rows

_BLOCK = 1 << 22  # numbers that are compared at a time


class OfEachNumber(ABC):
    """A rule that compares the clients' values of each number."""

    def __call__(self, value: Any) -> Any:
        """Compare a leaf of stacked uploads, ``(C, ...)`` or rows; gives it without client axis."""
        if isinstance(value, Rows):
            return self._of_rows(value)
        flat, everybody = value.reshape(len(value), -1), len(value)
        parts = flat.split(_width(len(flat)), dim=1)
        found = [self.of(part.sort(0).values, part.new_tensor(everybody)) for part in parts]
        return torch.cat(found).view(value.shape[1:])

    def _of_rows(self, rows: Rows) -> DenseRows:
        """The change of each row among those who changed it, times their share of all clients."""
        n_rows, width = rows.table_shape
        table = torch.zeros(n_rows, width, dtype=rows.dtype)
        for first, part, changed in _tables(rows):
            part = part.masked_fill(~changed[..., None], torch.inf).sort(0).values
            count = changed.sum(0).to(part.dtype)[:, None]
            found = self.of(part, count) * (count / rows.n_clients)
            table[first : first + len(found)] = found.where(count > 0, 0.0)
        return DenseRows(table[None])

    @abstractmethod
    def of(self, ordered: Tensor, count: Tensor) -> Tensor:
        """Make one of ``(C, ...)`` ascending values, of which the first ``count`` are some."""


class Median(OfEachNumber):
    """The value in the middle, or the mean of the two there.

    Example:
        >>> Median()(torch.tensor([[1.0], [2.0], [9.0], [4.0]])).tolist()
        [3.0]
    """

    def of(self, ordered: Tensor, count: Tensor) -> Tensor:
        """Take the middle."""
        places = count.long().expand(ordered.shape[1:])[None]
        low = ordered.gather(0, (places - 1).clamp_min(0) // 2)
        high = ordered.gather(0, (places // 2).clamp_max(len(ordered) - 1))
        return ((low + high) / 2)[0]


@dataclass(frozen=True)
class TrimmedMean(OfEachNumber):
    """The mean without a share of the largest and of the smallest values.

    Attributes:
        share: that is cut off at each end, rounded down to a number of clients.

    Example:
        >>> TrimmedMean(0.25)(torch.tensor([[1.0], [2.0], [90.0], [4.0]])).tolist()
        [3.0]
    """

    share: float

    def of(self, ordered: Tensor, count: Tensor) -> Tensor:
        """Take the mean of what is left."""
        cut = _floor(self.share * count.double())
        place = tree.columns(torch.arange(len(ordered)), ordered)
        kept = (place >= cut) & (place < count - cut)
        left = (count - 2 * cut).clamp_min(1).to(ordered.dtype)
        return ordered.where(kept, 0.0).sum(0) / left


def krum(upload: Any, n_clients: int, share: float, several: bool) -> Tensor:
    """Choose the uploads that are nearest to their neighbours: positions, ascending.

    The score of an upload is the sum of its squared distances to the n - f - 2 nearest others, f
    being the attackers (Blanchard et al., 2017); Multi-Krum takes the n - f of lowest score.

    Args:
        upload: stacked over C clients; all of its leaves together are compared.
        n_clients: C.
        share: of the clients that may lie; f is that many, rounded down.
        several: Multi-Krum.

    Raises:
        UserError: there are too few clients to tell, 2 f + 2 or fewer.

    Example:
        >>> krum({"w": torch.tensor([[0.0], [9.0], [1.0], [1.5], [1.4]])}, 5, 0.3, False).tolist()
        [4]
    """
    f = int(_floor(torch.tensor(share * n_clients, dtype=torch.float64)))
    if n_clients <= 2 * f + 2:
        raise UserError(
            f"aggregate.rule krum cannot tell {f} attackers among {n_clients} clients: it takes "
            f"{2 * f + 3}; let more take part, or choose median or trimmed-mean"
        )
    squares = squared_distances(upload, n_clients).fill_diagonal_(torch.inf)
    nearest = squares.topk(n_clients - f - 2, dim=1, largest=False).values
    order = nearest.sum(1).argsort(stable=True)
    return order[: n_clients - f if several else 1].sort().values


def squared_distances(upload: Any, n_clients: int) -> Tensor:
    """Squared L2 distances between whole uploads, ``(C, C)`` float64."""
    gram = torch.zeros(n_clients, n_clients, dtype=torch.float64)
    for _, value in tree.values({"": upload}):
        if isinstance(value, Rows):
            parts = (part.flatten(1) for _, part, _ in _tables(value))
        else:
            assert isinstance(value, Tensor)
            parts = iter(value.reshape(n_clients, -1).split(_width(n_clients), dim=1))
        for part in parts:
            gram.addmm_(part.double(), part.double().T)
    norms = gram.diagonal()
    return (norms[:, None] + norms - 2 * gram).clamp_min(0)


def _tables(rows: Rows) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Some rows at a time: number of the first, values ``(C, b, d)``, who changed them, (C, b)."""
    wire, (n_rows, width) = rows.wire(), rows.table_shape
    size, count = max(1, _width(rows.n_clients) // max(width, 1)), rows.n_clients
    if isinstance(wire, DenseRows):
        for first in range(0, n_rows, size):
            part = wire.values[:, first : first + size]
            yield first, part, torch.ones(part.shape[:2], dtype=torch.bool)
        return
    order = wire.index.values.argsort(stable=True)
    numbers = wire.index.values[order]
    for first in range(0, n_rows, size):
        last = min(first + size, n_rows)
        begin, end = torch.searchsorted(numbers, torch.tensor([first, last])).tolist()
        entries = order[begin:end]
        place = wire.index.rows[entries], wire.index.values[entries] - first
        part = wire.values.new_zeros(count, last - first, width)
        changed = torch.zeros(count, last - first, dtype=torch.bool)
        part[place], changed[place] = wire.values[entries], True
        yield first, part, changed


def _width(n_clients: int) -> int:
    """Numbers of a client that are compared at a time."""
    return max(1, _BLOCK // max(n_clients, 1))


def _floor(number: Tensor) -> Tensor:
    """Round down what is float64; 0.3 of 10 is 3."""
    return (number + 1e-9).floor()
