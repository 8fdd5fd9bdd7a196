"""A linear map of embeddings, made of their tables once a step instead of once a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Part:
    """Where one of the embeddings of a network's input comes from.

    Attributes:
        block: which embedding it is: features ``block * d`` to ``(block + 1) * d``.
        start: first of its rows in the design.
        stop: end of them.
        projected: whether they are its ids (or numbers), rather than its d features themselves.
    """

    block: int
    start: int
    stop: int
    projected: bool

    @property
    def rows(self) -> slice:
        """Its rows in the design."""
        return slice(self.start, self.stop)

    def features(self, width: int) -> slice:
        """Its features in the input."""
        return slice(self.block * width, (self.block + 1) * width)


def projected(weight: Tensor, tables: Tensor, parts: Sequence[Part]) -> Tensor:
    """Map tables instead of samples: what a linear map of the input is on its design.

    An input x = concat(E_1[c_1], …) is linear in the design m, which holds one-hot ids and numbers:
    x = D m, hence ``x @ W = m @ (D^T W)``. D has a block a field, ``E_f``, so that ``D^T W`` is a
    small product a field. Fields that are not projected have their features in the design.

    Args:
        weight: W ``(M, D, h)`` of M maps.
        tables: rows of all projected parts, ``(K_projected, d)``, in the order of the design, where
            they come first.
        parts: of the design.

    Returns:
        ``(M, K, h)``, K rows of the design.

    Example:
        >>> weight, table = torch.tensor([[[2.0], [3.0]]]), torch.eye(2)
        >>> projected(weight, table, [Part(0, 0, 2, True)]).tolist()
        [[[2.0], [3.0]]]
    """
    found: Tensor = _Projected.apply(weight, tables, tuple(parts))
    return found


class _Projected(torch.autograd.Function):
    """See `projected`; the gradient of the weight is written into one tensor, block by block."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tables: Tensor, parts: tuple[Part, ...]) -> Tensor:
        ctx.save_for_backward(weight, tables)
        ctx.parts = parts
        found = weight.new_empty(len(weight), parts[-1].stop, weight.shape[-1])
        for out, each in zip(found, weight, strict=True):
            for part, block in _blocks(each, tables, parts):
                if part.projected:
                    torch.mm(tables[part.rows], block, out=out[part.rows])
                else:
                    out[part.rows] = block
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weight, tables = ctx.saved_tensors
        need_weight, need_tables = ctx.needs_input_grad[:2]
        dweight = torch.empty_like(weight) if need_weight else None
        dtables = torch.zeros_like(tables) if need_tables else None
        for n, each in enumerate(weight):
            for part, block in _blocks(each, tables, ctx.parts):
                given = grad[n, part.rows]
                out = None if dweight is None else dweight[n, part.features(tables.shape[1])]
                if out is not None and part.projected:
                    torch.mm(tables[part.rows].mT, given, out=out)
                elif out is not None:
                    out.copy_(given)
                if dtables is not None and part.projected:
                    dtables[part.rows].addmm_(given, block.mT)
        return dweight, dtables, None


def _blocks(
    weight: Tensor, tables: Tensor, parts: tuple[Part, ...]
) -> Iterator[tuple[Part, Tensor]]:
    for part in parts:
        yield part, weight[part.features(tables.shape[1])]
