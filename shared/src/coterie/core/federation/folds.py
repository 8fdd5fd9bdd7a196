"""Folds: how uploads become one value while chunks arrive."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from coterie.core.tensors import tree


class Fold(Protocol):
    """A running reduction over stacked uploads."""

    def add(self, total: Any, up: Any) -> Any:
        """Add a chunk's uploads to the running value (None at first)."""
        ...


@dataclasses.dataclass(frozen=True)
class Sum:
    """Sum every field over the clients, each client times its weight.

    Attributes:
        weight: gives the clients' weights ``(C,)`` from their uploads; None weighs all by 1.

    Example:
        >>> import torch
        >>> fold = Sum()
        >>> total = fold.add(None, {"a": torch.ones(2, 3)})
        >>> fold.add(total, {"a": torch.ones(4, 3)})["a"].tolist()
        [6.0, 6.0, 6.0]
    """

    weight: Callable[[Any], Tensor] | None = None

    def add(self, total: Any, up: Any) -> Any:
        """Add a chunk's uploads to the running sum."""
        weight = None if self.weight is None else self.weight(up)
        chunk = {name: _sum(value, weight) for name, value in tree.children(up)}
        chunk = {name: value for name, value in chunk.items() if value is not None}
        if total is not None:
            chunk = {name: tree.map_tensors(Tensor.add, total[name], chunk[name]) for name in chunk}
        return chunk


def _sum(value: Any, weight: Tensor | None) -> Any:
    if value is None:
        return None
    if hasattr(value, "touched"):
        return (value if weight is None else value.scaled(weight)).sum()
    if weight is None:
        return tree.map_tensors(lambda leaf: leaf.sum(0), value)
    return tree.map_tensors(lambda leaf: (leaf * tree.columns(weight, leaf)).sum(0), value)
