"""Robust rules: what stands in for the mean of C uploads of which a minority may be made up.

Median and trimmed mean (Yin et al., ICML 2018) look at each number by itself, Krum and Multi-Krum
(Blanchard et al., NIPS 2017) at whole uploads. Of changes of a table's rows, which most clients
leave as they are, each row is compared among those who changed it: over all clients the median
would be 0 in every row. So a row that attackers alone change is theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.chunks import fitting
from coterie.core.tensors import tree
from coterie.core.tensors.rows import DenseRows, Rows, TouchedRows

_EXACT = 4  # bytes of a number that can count clients
_BLOCK = 1 << 22  # numbers that are compared at a time


class OfEachNumber(ABC):
    """A rule that compares the clients' values of each number."""

    def __call__(self, value: Any) -> Any:
        """Compare a leaf of stacked uploads, ``(C, ...)`` or rows; gives it without client axis."""
        if isinstance(value, Rows):
            return self._of_rows(value)
        if value.dtype.itemsize < _EXACT:  # counts would not be whole, and numpy sorts none
            return self(value.float()).to(value.dtype)
        flat = value.reshape(len(value), -1)
        everybody = flat.new_tensor(len(flat))
        parts = flat.split(_width(len(flat)), dim=1)
        return torch.cat([self.of(_ascending(p), everybody) for p in parts]).view(value.shape[1:])

    def _of_rows(self, rows: Rows) -> DenseRows:
        """The change of each row among those who changed it, times their share of all clients."""
        wire = rows.wire()
        if isinstance(wire, DenseRows):
            return DenseRows(self(wire.values)[None])
        if wire.dtype.itemsize < _EXACT:
            wire = replace(wire, values=wire.values.float())
        table = wire.values.new_zeros(rows.table_shape)
        for some in _rows_of(wire, rows.table_shape[1]):
            ordered = _ascending(some.values.masked_fill(~some.known[..., None], torch.inf))
            count = some.known.sum(0).to(ordered.dtype)[:, None]
            table[some.rows] = self.of(ordered, count) * (count / rows.n_clients)
        return DenseRows(table[None].to(rows.dtype))

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
            f"aggregate.rule krum cannot tell {f} attackers among {n_clients} clients with data: "
            f"it takes {2 * f + 3}; let more take part, or choose median or trimmed-mean"
        )
    squares = squared_distances(upload, n_clients).fill_diagonal_(torch.inf)
    nearest = squares.topk(n_clients - f - 2, dim=1, largest=False).values
    order = nearest.sum(1).argsort(stable=True)
    return order[: n_clients - f if several else 1].sort().values


def squared_distances(upload: Any, n_clients: int) -> Tensor:
    """Squared L2 distances between whole uploads, ``(C, C)`` float64."""
    gram = torch.zeros(n_clients, n_clients, dtype=torch.float64)
    for _, value in tree.values({"": upload}):
        wire = value.wire() if isinstance(value, Rows) else value
        if isinstance(wire, TouchedRows):
            _add_products(gram, wire)
            continue
        whole = wire.values if isinstance(wire, DenseRows) else wire
        assert isinstance(whole, Tensor)
        for part in whole.reshape(n_clients, -1).split(_width(n_clients), dim=1):
            gram.addmm_(part.double(), part.double().T)
    norms = gram.diagonal()
    return (norms[:, None] + norms - 2 * gram).clamp_min(0)


def _add_products(gram: Tensor, rows: TouchedRows) -> None:
    """Add inner products of changes of rows, which are of those who changed the same row."""
    for some in _rows_of(rows, len(gram)):
        values = some.values.masked_fill(~some.known[..., None], 0.0).double().transpose(0, 1)
        one, other = some.clients.T[:, :, None], some.clients.T[:, None, :]
        gram.view(-1).index_add_(
            0, (one * len(gram) + other).flatten(), (values @ values.mT).flatten()
        )


@dataclass(frozen=True)
class _SomeRows:
    """Some rows of a table, with the changes of those who changed them.

    Attributes:
        rows: ``(b,)`` their numbers.
        values: ``(k, b, d)``.
        clients: ``(k, b)`` whose.
        known: ``(k, b)`` bool; the others fill up.
    """

    rows: Tensor
    values: Tensor
    clients: Tensor
    known: Tensor


def _rows_of(rows: TouchedRows, width: int) -> Iterator[_SomeRows]:
    """The rows that somebody changed, those that as many changed together.

    Args:
        rows: changes of all clients.
        width: numbers that are held for each change.
    """
    order = rows.index.values.argsort(stable=True)
    counts = rows.index.values.bincount(minlength=rows.n_rows)
    starts, by_count = counts.cumsum(0) - counts, counts.argsort(stable=True)
    by_count = by_count[counts[by_count] > 0]
    for some in torch.split(by_count, fitting(counts[by_count] * max(width, 1), _BLOCK)):
        place = torch.arange(int(counts[some].max()))[:, None]
        known = place < counts[some]
        entries = order[(starts[some] + place).clamp_max(len(order) - 1)]
        clients = rows.index.rows[entries]
        yield _SomeRows(some, rows.values[entries], clients, known)


def _ascending(values: Tensor) -> Tensor:
    """Sort along the first axis; on a CPU numpy does, ten times as fast as torch."""
    if values.device.type != "cpu":
        return values.sort(0).values
    return torch.as_tensor(np.sort(values.numpy(), axis=0))


def _width(n_clients: int) -> int:
    """Numbers of a client that are compared at a time."""
    return max(1, _BLOCK // max(n_clients, 1))


def _floor(number: Tensor) -> Tensor:
    """Round down what is float64; 0.3 of 10 is 3."""
    return (number + 1e-9).floor()
