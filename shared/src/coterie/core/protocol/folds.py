"""Folds: how uploads become one value while chunks arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.tensors import tree
from coterie.core.tensors.rows import DenseRows, Rows

U = TypeVar("U")
U_contra = TypeVar("U_contra", contravariant=True)
T = TypeVar("T")


class Fold(Protocol[U_contra, T]):
    """A running reduction over stacked uploads."""

    def add(self, total: T | None, up: U_contra) -> T:
        """Add a chunk's uploads to the running value (None at first)."""
        ...


@dataclass(frozen=True)
class Sum:
    """Sum every field over the clients, each client times its weight.

    The sum is a message of the same type without the client axis; changes of rows add up to
    changes of one client.

    Attributes:
        weight: gives the clients' weights ``(C,)`` from their uploads; None weighs all by 1.

    Example:
        >>> fold = Sum()
        >>> total = fold.add(None, {"a": torch.ones(2, 3)})
        >>> fold.add(total, {"a": torch.ones(4, 3)})["a"].tolist()
        [6.0, 6.0, 6.0]
    """

    weight: Callable[[Any], Tensor] | None = None

    def add(self, total: U | None, up: U) -> U:
        """Add a chunk's uploads to the running sum.

        Raises:
            TypeError: a field holds rows of unequal length, which have no sum.
        """
        weight = None if self.weight is None else self.weight(up)
        chunk = tree.map_values(lambda leaf: _sum(leaf, weight), up)
        return chunk if total is None else tree.map_tensors(torch.add, total, chunk)


def _sum(value: Any, weight: Tensor | None) -> Any:
    if isinstance(value, Rows):
        rows = value if weight is None else value.scaled(weight)
        return DenseRows(rows.sum()[None])
    if not isinstance(value, Tensor):
        raise TypeError(f"a {type(value).__name__} cannot be summed over clients: keep the uploads")
    if weight is None:
        return value.sum(0)
    return (value * tree.columns(weight, value)).sum(0)
