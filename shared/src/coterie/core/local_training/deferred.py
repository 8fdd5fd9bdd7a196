"""Large weights whose steps are kept as products, and added to the weights together.

A step of a weight W of y = x Wᵀ adds leftᵀ right (an `Outer`), which has to read and write W,
megabytes that no cache holds. While few samples have been seen,

    x Wᵀ = x W₀ᵀ + (x rightᵀ) left

costs less, with the factors of all steps so far one below the other. W₀ is only read; clients that
start from the same model share it, and its product with the samples of all of them is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.core.local_training.outer import Outer
from coterie.core.tensors import tree

LARGE = 1 << 18
"""Least numbers of a weight that is worth it: 1 MiB, which second-level caches hold."""


def room(rows: int, columns: int) -> int:
    """Samples whose products are half as much work as a weight ``(rows, columns)`` itself.

    Example:
        >>> room(1400, 784)
        251
    """
    return rows * columns // (2 * (rows + columns))


class ReadElsewhere(Exception):
    """A weight was read outside of its linear layer, where its steps are not in it yet."""


class Withheld(Tensor):
    """Stands in a module for a weight that only its layer may read.

    Raises:
        ReadElsewhere: anything else reads it.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse every operation."""
        raise ReadElsewhere


WITHHELD = Tensor._make_subclass(Withheld, torch.empty(0, device="meta"))


@dataclass
class Deferred:
    """A weight of K clients: ``base + leftᵀ right``.

    Attributes:
        own: ``(K, out, in)`` where the clients' weights are written to.
        base: ``(out, in)`` of all of them, until their own are written; then None.
        left: ``(K, n, out)`` and more room.
        right: ``(K, n, in)`` and more room.
        used: n.
    """

    own: Tensor
    base: Tensor | None
    left: Tensor = field(init=False)
    right: Tensor = field(init=False)
    used: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        clients, rows, columns = self.own.shape
        most = room(rows, columns)
        self.left = self.own.new_empty(clients, most, rows)
        self.right = self.own.new_empty(clients, most, columns)

    def factors(self) -> tuple[Tensor, Tensor]:
        """``(K, n, out)`` and ``(K, n, in)``."""
        return self.left[:, : self.used], self.right[:, : self.used]

    def descend(self, grad: Outer, lr: float | Tensor) -> None:
        """Keep a step of gradient descent."""
        rate = tree.columns(lr, grad.left) if isinstance(lr, Tensor) else lr
        left, more = grad.left * -rate, grad.left.shape[1]
        if self.used + more > self.left.shape[1]:
            self.settle()
        if more > self.left.shape[1]:
            self.own.baddbmm_(left.mT, grad.right)
            return
        self.left[:, self.used : self.used + more] = left
        self.right[:, self.used : self.used + more] = grad.right
        self.used += more

    def settle(self) -> None:
        """Write the weights."""
        left, right = self.factors()
        if self.base is not None:
            self.own.copy_(self.base.expand_as(self.own))
            self.base = None
        self.own.baddbmm_(left.mT, right)
        self.used = 0

    def cut(self, active: int) -> Deferred:
        """Write the weights of all but the first, and go on with those."""
        rest = self._part(slice(active, None))
        rest.settle()
        return self._part(slice(active))

    def _part(self, rows: slice) -> Deferred:
        part = object.__new__(Deferred)
        part.own, part.base, part.used = self.own[rows], self.base, self.used
        part.left, part.right = self.left[rows], self.right[rows]
        return part
