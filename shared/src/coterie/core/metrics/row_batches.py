"""RMSE and MAP as MTAL's public code averages them: by batches of rows, weighted by cells.

The square root and the mean over rows are taken within each batch, so both depend on the size of
the batches. They are there to compare with what that code prints; see
`coterie.core.metrics.rated_cells` for the metrics themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.metrics.rated_cells import average_precision
from coterie.core.tensors.ragged import Ragged


def rmse_of_batches(predicted: Tensor, observed: Tensor, rows: Ragged, batch_rows: int) -> float:
    """RMSE of each batch of rows, averaged with the numbers of cells as weights.

    Args:
        predicted: ``(n,)``, aligned with ``rows.values``.
        observed: ``(n,)``.
        rows: column numbers of the rows' held-out cells.
        batch_rows: rows a batch.

    Returns:
        NaN where there are no cells.

    Example:
        >>> rows = Ragged.from_lists([[0], [0, 1]])
        >>> rmse_of_batches(torch.tensor([3.0, 1.0, 1.0]), torch.ones(3), rows, 1)
        0.6666666666666666
    """
    error = (predicted.double() - observed.double()).square()
    sums = error.new_zeros(len(rows)).index_add_(0, rows.rows, error)
    count, total = _by_batch(batch_rows, rows.lengths, sums)
    return _weighted((total / count.clamp(min=1)).sqrt(), count)


def map_of_batches(
    scores: Tensor, relevant: Tensor, candidates: Ragged, k: int, batch_rows: int
) -> float:
    """Mean of AP@k over the rows of each batch, averaged with the numbers of cells as weights.

    Rows without a relevant cell count as 0, rows without a cell not at all.

    Args:
        scores: as in `average_precision`.
        relevant: as in `average_precision`.
        candidates: as in `average_precision`.
        k: length of the list.
        batch_rows: rows a batch.

    Returns:
        NaN where there are no cells.

    Raises:
        ValueError: as `average_precision`.
    """
    value = average_precision(scores, relevant, candidates, k, empty="zero")
    count, n_rows, total = _by_batch(
        batch_rows, candidates.lengths, ~value.isnan(), value.nan_to_num()
    )
    return _weighted(total / n_rows.clamp(min=1), count)


def _by_batch(batch_rows: int, *of_rows: Tensor) -> Tensor:
    """Sums over the rows of each batch, ``(p, n_batches)`` float64, of p values a row."""
    values = torch.stack([column.double() for column in of_rows])
    batch = torch.arange(values.shape[1]) // batch_rows
    n_batches = -(-values.shape[1] // batch_rows)
    return values.new_zeros(len(values), n_batches).index_add_(1, batch, values)


def _weighted(values: Tensor, weights: Tensor) -> float:
    return ((values * weights).sum() / weights.sum()).item()
