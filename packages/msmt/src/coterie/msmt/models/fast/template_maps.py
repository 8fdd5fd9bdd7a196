"""The first layers of templated experts (Eq. 4) on projected tables, without making any of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
