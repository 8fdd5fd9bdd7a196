"""The first layers of templated experts (Eq. 4) on projected tables, never all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coterie.msmt.models.fast.projection import Part, in_blocks


def template_maps(
    local: Tensor,
    scenario: Tensor,
    columns: Tensor,
    rows: Tensor,
    tables: Tensor,
    parts: Sequence[Part],
) -> Tensor:
    """Map tables by E[t, n] = local[n] * scenario[n] * (1 + rows[t, n] + columns[t, n]), Eq. 4.

    What `coterie.msmt.models.fast.projection.projected` gives for all E. These are made block by
    block and forgotten: T N D h numbers would cross the memory several times.

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
    found: Tensor = _TemplateMaps.apply(local, scenario, columns, rows, tables, tuple(parts))
    return found


class _TemplateMaps(torch.autograd.Function):
    """See `template_maps`."""

    @staticmethod
    def forward(
        ctx: Any,
        local: Tensor,
        scenario: Tensor,
        columns: Tensor,
        rows: Tensor,
        tables: Tensor,
        parts: tuple[Part, ...],
    ) -> Tensor:
        ctx.save_for_backward(local, scenario, columns, rows, tables)
        ctx.parts = parts
        (n_tasks, n_experts, h), width = columns.shape, tables.shape[1]
        found = local.new_empty(n_tasks, n_experts, parts[-1].stop, h)
        common, each = local.new_empty(2, width, h)
        for n in range(n_experts):
            cut = _blocks(parts, tables, local[n], scenario[n], rows[:, n], found[:, n])
            for table, mine, shared, factor, out in cut:
                torch.mul(mine, shared, out=common)
                for t in range(n_tasks):
                    torch.add(factor[t][:, None], 1 + columns[t, n], out=each).mul_(common)
                    if table is None:
                        out[t].copy_(each)
                    else:
                        torch.mm(table, each, out=out[t])
        return found.flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        local, scenario, columns, rows, tables = ctx.saved_tensors
        (n_tasks, n_experts, h), width = columns.shape, tables.shape[1]
        grad = grad.unflatten(0, (n_tasks, n_experts))
        dlocal, dscenario = torch.empty_like(local), torch.empty_like(scenario)
        dcolumns, drows = torch.zeros_like(columns), torch.empty_like(rows)
        dtables = torch.zeros_like(tables)
        common, factor, each, total = local.new_empty(4, width, h)
        for n in range(n_experts):
            cut = _blocks(ctx.parts, tables, local[n], scenario[n], rows[:, n], grad[:, n])
            new = _blocks(ctx.parts, dtables, dlocal[n], dscenario[n], drows[:, n], grad[:, n])
            for (table, mine, shared, row, given), (dtable, dmine, dshared, drow, _) in zip(
                cut, new, strict=True
            ):
                torch.mul(mine, shared, out=common)
                for t in range(n_tasks):
                    torch.add(row[t][:, None], 1 + columns[t, n], out=factor)
                    if table is None or dtable is None:
                        each.copy_(given[t])
                    else:
                        torch.mul(factor, common, out=each)
                        dtable.addmm_(given[t], each.T)
                        torch.mm(table.T, given[t], out=each)
                    torch.mul(each, factor, out=total) if not t else total.addcmul_(each, factor)
                    each.mul_(common)
                    torch.sum(each, 1, out=drow[t])
                    dcolumns[t, n] += each.sum(0)
                torch.mul(total, shared, out=dmine)
                torch.mul(total, mine, out=dshared)
        return dlocal, dscenario, dcolumns, drows, dtables, None


Block = tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]


def _blocks(
    parts: Sequence[Part],
    tables: Tensor,
    local: Tensor,
    scenario: Tensor,
    rows: Tensor,
    found: Tensor,
) -> Iterator[Block]:
    """Cut what belongs to an expert by parts: table, weights ``(d, h)``, rows, what is found.

    The last two, ``(T, D)`` and ``(T, K, h)``, have tasks in front.
    """
    width = tables.shape[1]
    sizes = [part.stop - part.start for part in parts]
    cut = in_blocks(parts, tables, local, found[0])
    by_block = scenario.split(width), rows.split(width, dim=1)
    for (table, mine, _), part, out in zip(cut, parts, found.split(sizes, dim=1), strict=True):
        yield table, mine, by_block[0][part.block], by_block[1][part.block], out
