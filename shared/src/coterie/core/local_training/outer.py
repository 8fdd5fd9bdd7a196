"""Gradients of linear layers, left as the products that they are until the step.

The gradient of a weight W of y = x Wᵀ is (dL/dy)ᵀ x, as large as W, and made of two factors that
are as small as a batch. A step W - lr (dL/dy)ᵀ x is one matrix product that adds to W: the gradient
itself, written to memory and read again, takes as long as the product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.tensors import tree


@dataclass(frozen=True)
class Outer:
    """Gradients of weights ``(K, out, in)`` of K clients: ``leftᵀ right + rest``.

    Attributes:
        left: ``(K, n, out)`` gradients in the layer's outputs.
        right: ``(K, n, in)`` inputs of the layer.
        rest: ``(K, out, in)`` what else there is of the gradient; None for nothing.

    Example:
        >>> Outer(torch.ones(1, 2, 1), torch.ones(1, 2, 3)).dense().tolist()
        [[[2.0, 2.0, 2.0]]]
    """

    left: Tensor
    right: Tensor
    rest: Tensor | None = None

    def dense(self) -> Tensor:
        """The gradients themselves."""
        if self.rest is None:
            return torch.bmm(self.left.mT, self.right)
        return torch.baddbmm(self.rest, self.left.mT, self.right)

    def with_rest(self, more: Tensor) -> Outer:
        """Add dense gradients."""
        return replace(self, rest=more if self.rest is None else self.rest + more)

    def apart_from(self, memory: set[int]) -> Outer:
        """The same, in memory of its own where it lies in some storage; these are addresses."""
        left, right, rest = (
            None if part is None else part.clone() if address(part) in memory else part
            for part in (self.left, self.right, self.rest)
        )
        assert left is not None
        assert right is not None
        return Outer(left, right, rest)

    def descend(
        self, weight: Tensor, lr: float | Tensor, decay: float, *, in_place: bool
    ) -> Tensor:
        """One step of gradient descent on weights ``(K, out, in)``.

        Args:
            weight: as they are.
            lr: learning rate, one for all or ``(K,)``.
            decay: pull to zero, added to the gradient.
            in_place: whether ``weight`` may be written over.
        """
        # The same product for one rate and for one a client, so that equal rates give equal bits.
        left = self.left * (tree.columns(lr, self.left) if isinstance(lr, Tensor) else lr)
        keep: float | Tensor = 1.0 - lr * decay
        out = weight if in_place else weight.clone()
        if isinstance(keep, Tensor):
            out.mul_(tree.columns(keep, out).to(out.dtype))
            keep = 1.0
        if self.rest is not None:
            descended(out.mul_(keep), self.rest, lr, out)
            keep = 1.0
        if len(out) == 1:  # the batched form of one product costs a sixth of it
            out[0].addmm_(left[0].mT, self.right[0], beta=keep, alpha=-1)
            return out
        return out.baddbmm_(left.mT, self.right, beta=keep, alpha=-1)


def joined(terms: list[tuple[Tensor, Tensor]], rest: Tensor | None) -> Outer:
    """Make one of the gradients that a weight gets where it is used several times."""
    (left, right), *more = terms
    if more:
        left = torch.cat([each for each, _ in terms], 1)
        right = torch.cat([each for _, each in terms], 1)
    return Outer(left, right, rest)


def address(tensor: Tensor) -> int:
    """Where the memory of a tensor begins."""
    tensor = tensor._values() if tensor.is_sparse else tensor
    return tensor.untyped_storage().data_ptr()


def descended(
    value: Tensor, direction: Tensor, lr: float | Tensor, out: Tensor | None = None
) -> Tensor:
    """``value - lr direction``, ``(K, ...)``; into ``out``, which may be ``value``.

    One rate for all and equal rates, ``(K,)``, give the same bits.
    """
    if isinstance(lr, Tensor) and lr.dim():
        rate = tree.columns(lr, value).to(value.dtype)
        return torch.addcmul(value, rate, direction, value=-1, out=out)
    return torch.add(value, direction, alpha=-float(lr), out=out)
