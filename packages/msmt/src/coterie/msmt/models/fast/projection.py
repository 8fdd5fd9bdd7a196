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
            for table, block, rows in in_blocks(parts, tables, each, out):
                if table is None:
                    rows.copy_(block)
                else:
                    torch.mm(table, block, out=rows)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, tables = ctx.saved_tensors
        dweight, dtables = torch.empty_like(weight), torch.zeros_like(tables)
        for given, each, out in zip(grad, weight, dweight, strict=True):
            moved = in_blocks(ctx.parts, dtables, out, given)
            for (table, block, _), (dtable, dblock, rows) in zip(
                in_blocks(ctx.parts, tables, each, given), moved, strict=True
            ):
                if table is None or dtable is None:
                    dblock.copy_(rows)
                    continue
                torch.mm(table.mT, rows, out=dblock)
                dtable.addmm_(rows, block.mT)
        return dweight, dtables, None


def in_blocks(
    parts: Sequence[Part], tables: Tensor, weight: Tensor, found: Tensor
) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
    """Cut tensors into what belongs to each part.

    Args:
        parts: of the design.
        tables: ``(K_projected, d)``.
        weight: ``(D, h)``.
        found: ``(K, h)``.

    Yields:
        Views: the table, None for a part that is not projected; the block of the weight, ``(d, h)``;
        the rows of what was found.
    """
    sizes = [part.stop - part.start for part in parts]
    few = [size for size, part in zip(sizes, parts, strict=True) if part.projected]
    cut = [*tables.split(few), *[None] * (len(parts) - len(few))]
    by_block = weight.split(tables.shape[1])
    for table, part, rows in zip(cut, parts, found.split(sizes), strict=True):
        yield table, by_block[part.block], rows
