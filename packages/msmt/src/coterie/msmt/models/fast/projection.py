"""A linear map of embeddings, made of their tables once a step instead of once a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SMALL = 1 << 17
"""Products a block, in which a product with zeros takes as long as another call."""


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

    def features(self, width: int) -> slice:
        """Its features in the input, where an embedding has ``width``."""
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
    if is_small(weight, parts):
        return block_diagonal(tables, parts, weight.shape[1]) @ weight
    each = tables[:, None].expand(len(weight), -1, 1, -1)
    return scaled_maps(weight, None, each, None, parts).squeeze(2)


def scaled_maps(
    weight: Tensor,
    factor: Tensor | None,
    tables: Tensor,
    scales: Tensor | None,
    parts: Sequence[Part],
) -> Tensor:
    """Map J tables by the same weights, as `projected` maps one.

    Args:
        weight: ``(M, D, h)``.
        factor: of the weights, ``(M, D, h)``; their product is never there as a whole.
        tables: ``(M, K_projected, J, d)``.
        scales: of the features of parts that are not projected, ``(M, D, J)``; None = 1.
        parts: of the design.

    Returns:
        ``(M, K, J, h)``.
    """
    found: Tensor = _ScaledMaps.apply(weight, factor, tables, scales, tuple(parts))
    return found


def is_small(weight: Tensor, parts: Sequence[Part]) -> bool:
    """Whether one product with a matrix that is mostly zeros is faster than one a block."""
    return parts[-1].stop * weight.shape[-2] * weight.shape[-1] <= SMALL * len(parts)


def block_diagonal(tables: Tensor, parts: Sequence[Part], n_features: int) -> Tensor:
    """Spread the tables: the rows of a part, its table or the identity, at its block's features.

    Args:
        tables: ``(K_projected, d)``.
        parts: of the design.
        n_features: D.

    Returns:
        ``(K, D)``.

    Example:
        >>> parts = [Part(1, 0, 2, True), Part(0, 2, 3, False)]
        >>> block_diagonal(torch.tensor([[2.0], [3.0]]), parts, 2)
        tensor([[0., 2.],
                [0., 3.],
                [1., 0.]])
    """
    width = tables.shape[1]
    n_plain = sum(not part.projected for part in parts)
    identity = torch.eye(width, dtype=tables.dtype, device=tables.device)
    rows = torch.cat([tables, identity.repeat(n_plain, 1)])
    blocks = [part.block for part in parts for _ in range(part.start, part.stop)]
    place = torch.tensor(blocks, dtype=torch.int64, device=tables.device)
    n_blocks = n_features // width
    mine = place[:, None] == torch.arange(n_blocks, device=tables.device)
    return (mine[..., None] * rows[:, None]).flatten(1)


class _ScaledMaps(torch.autograd.Function):
    """See `scaled_maps`; the gradients of the weights are written block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        factor: Tensor | None,
        tables: Tensor,
        scales: Tensor | None,
        parts: tuple[Part, ...],
    ) -> Tensor:
        ctx.save_for_backward(weight, factor, tables, scales)
        ctx.parts = parts
        (n_maps, _, n_tables, width), h = tables.shape, weight.shape[2]
        found = weight.new_empty(n_maps, parts[-1].stop, n_tables, h)
        space = weight.new_empty(width, h)
        for n in range(n_maps):
            mine = None if factor is None else factor[n]
            for part, at, block in _blocks(parts, weight[n], mine, space):
                out = found[n, part.start : part.stop]
                if part.projected:
                    torch.mm(_rows(tables[n], part), block, out=out.flatten(0, 1))
                elif scales is None:
                    out.copy_(block[:, None])
                else:
                    torch.mul(block[:, None], scales[n, at, :, None], out=out)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, factor, tables, scales = ctx.saved_tensors
        dweight, dtables = torch.empty_like(weight), tables.new_empty(tables.shape)
        dfactor = None if factor is None else torch.empty_like(factor)
        dscales = None if scales is None else torch.zeros_like(scales)
        space, moved = weight.new_empty(2, tables.shape[3], weight.shape[2])
        for n, given in enumerate(grad):
            mine = None if factor is None else factor[n]
            for part, at, block in _blocks(ctx.parts, weight[n], mine, space):
                rows = given[part.start : part.stop]
                dblock = dweight[n, at] if mine is None else moved
                if part.projected:
                    flat = rows.flatten(0, 1)
                    torch.mm(_rows(tables[n], part).T, flat, out=dblock)
                    torch.mm(flat, block.T, out=_rows(dtables[n], part))
                elif scales is None or dscales is None:
                    torch.sum(rows, 1, out=dblock)
                else:
                    torch.sum(rows * scales[n, at, :, None], 1, out=dblock)
                    torch.sum(rows * block[:, None], 2, out=dscales[n, at])
                if mine is not None and dfactor is not None:
                    torch.mul(dblock, mine[at], out=dweight[n, at])
                    torch.mul(dblock, weight[n, at], out=dfactor[n, at])
        return dweight, dfactor, dtables, dscales, None


def _blocks(
    parts: Sequence[Part], weight: Tensor, factor: Tensor | None, space: Tensor
) -> Iterator[tuple[Part, slice, Tensor]]:
    """Yield parts with their features and their block of the weight ``(d, h)``.

    Args:
        parts: of the design.
        weight: ``(D, h)``.
        factor: of it.
        space: ``(d, h)``, for the product of both.
    """
    for part in parts:
        at = part.features(len(space))
        block = weight[at]
        if factor is not None:
            block = torch.mul(block, factor[at], out=space)
        yield part, at, block


def _rows(tables: Tensor, part: Part) -> Tensor:
    """Cut a part's rows of J tables, ``(n J, d)``, out of ``(K_projected, J, d)``."""
    return tables[part.start : part.stop].flatten(0, 1)
