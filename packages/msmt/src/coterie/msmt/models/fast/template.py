"""The template's own operations: first layers of its experts, the weight that scenarios share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coterie.msmt.models.fast.hidden import chunks
from coterie.msmt.models.fast.projection import Part, is_small, projected, scaled_maps


def template_maps(
    local: Tensor,
    scenario: Tensor,
    columns: Tensor,
    rows: Tensor,
    tables: Tensor,
    parts: Sequence[Part],
) -> Tensor:
    """Map tables by E[t, n] = local[n] * scenario[n] * (1 + rows[t, n] + columns[t, n]), Eq. 4.

    What `coterie.msmt.models.fast.projection.projected` gives for all E. With the product W of
    local and scenario, ``D^T E = (1 + columns) * (D^T W) + (rows * D)^T W``: one product with
    1 + T tables, and E, T N D h numbers, is not needed.

    Args:
        local: W_loc ``(N, D, h)``.
        scenario: W_s ``(N, D, h)``.
        columns: of the tasks' factors, ``(T, N, h)``.
        rows: of the tasks' factors, ``(T, N, D)``.
        tables: of the projected parts, ``(K_projected, d)``.
        parts: of the design.

    Returns:
        ``(T N, K, h)``.
    """
    if is_small(local, parts):
        weight = local * scenario * (rows[..., None] + (1 + columns[..., None, :]))
        return projected(weight.flatten(0, 1), tables, parts)
    scales = torch.cat([torch.ones_like(rows[:1]), rows]).permute(1, 2, 0)
    by_block = scales.unflatten(1, (-1, tables.shape[1]))
    blocks = [part.block for part in parts if part.projected for _ in range(part.start, part.stop)]
    place = torch.tensor(blocks, dtype=torch.int64, device=tables.device)
    of_rows = by_block.index_select(1, place).mT
    found = scaled_maps(local, scenario, of_rows * tables[:, None], scales, parts)
    common, *each = found.unbind(2)
    maps = [
        torch.addcmul(own, common, 1 + column[:, None])
        for own, column in zip(each, columns, strict=True)
    ]
    return torch.cat(maps)


# The weight that scenarios share, and how far it is from an anchor, a block at a time.


def factored_weight(
    rows: Tensor, columns: Tensor, residual: Tensor, psi: Tensor, direction: Tensor, anchor: Tensor
) -> tuple[Tensor, Tensor]:
    """Make W_s[n] = 1 + rows[n] + columns[n] + residual[n] + psi[n] direction[n].

    The gradients of the factors are sums of that of W_s, which needs no copy of its own: it is
    read once, and with it what belongs to the alignment.

    Args:
        rows: ``(N, D)``.
        columns: ``(N, h)``.
        residual: ``(N, D, h)``, a constant.
        psi: ``(N,)``.
        direction: ``(N, D, h)``, a constant.
        anchor: ``(N, D, h)``, a constant.

    Returns:
        W_s ``(N, D, h)``, and the sum over experts of the mean square of W_s - anchor (Eq. 23).
    """
    found: tuple[Tensor, Tensor] = _FactoredWeight.apply(
        rows, columns, residual, psi, direction, anchor
    )
    return found


class _FactoredWeight(torch.autograd.Function):
    """See `factored_weight`."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        residual: Tensor,
        psi: Tensor,
        direction: Tensor,
        anchor: Tensor,
    ) -> tuple[Tensor, Tensor]:
        found, squares = torch.empty_like(residual), rows.new_zeros(())
        shifted, space = 1 + columns, _space(found)
        for n, each in enumerate(found):
            for at in chunks(each):
                torch.add(rows[n, at, None], shifted[n], out=each[at])
                each[at].add_(residual[n, at]).addcmul_(direction[n, at], psi[n])
                apart = torch.sub(each[at], anchor[n, at], out=space[: len(each[at])]).view(-1)
                squares += apart @ apart
        ctx.save_for_backward(found, psi, direction, anchor)
        ctx.set_materialize_grads(False)
        return found, squares / found[0].numel()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_apart: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        found, psi, direction, anchor = ctx.saved_tensors
        drows, dcolumns = (
            found.new_empty(found.shape[:2]),
            found.new_zeros(len(psi), found.shape[2]),
        )
        dpsi = torch.zeros_like(psi)
        pull = None if grad_apart is None else grad_apart * (2 / found[0].numel())
        space = _space(found)
        for n, each in enumerate(found):
            for at in chunks(each):
                given = space[: len(each[at])]
                if pull is None:
                    given.zero_()
                else:
                    torch.sub(each[at], anchor[n, at], out=given).mul_(pull)
                if grad is not None:
                    given.add_(grad[n, at])
                torch.sum(given, 1, out=drows[n, at])
                dcolumns[n] += given.sum(0)
                dpsi[n] += given.view(-1) @ direction[n, at].reshape(-1)
        return drows, dcolumns, None, dpsi, None, None


def _space(weight: Tensor) -> Tensor:
    """Memory for a piece of ``(N, D, h)``, to be used for one after the other."""
    return torch.empty_like(weight[0, : next(chunks(weight[0])).stop])
