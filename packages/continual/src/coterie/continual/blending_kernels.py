"""The kernel of the item-wise temporal mean (`coterie.continual.algorithm`)."""

from __future__ import annotations

import math
from typing import Any

from coterie.core.kernels.compiled import compiled


@compiled
def blend(table: Any, old: Any, beta: Any, out: Any) -> None:
    """Blend old items with the previous block's rows, the less the more they moved (Eq. 8 to 10).

    Args:
        table: ``(n, d)``.
        old: ``(n_old, d)``, n_old <= n.
        beta: β.
        out: ``(n, d)``, is written to.
    """
    kind, n_old, width = table.dtype.type, old.shape[0], table.shape[1]
    scale, one = kind(1 / math.sqrt(width)), kind(1)
    for item in range(n_old):
        moved = kind(0)
        for column in range(width):
            away = old[item, column] - table[item, column]
            moved += away * away
        weight = kind(beta) / (one + moved * scale)
        for column in range(width):
            kept = (one - weight) * table[item, column]
            out[item, column] = kept + weight * old[item, column]
    for item in range(n_old, table.shape[0]):
        for column in range(width):
            out[item, column] = table[item, column]
