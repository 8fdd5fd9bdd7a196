"""Metrics over held-out rated cells; pure torch, so that a client process can use them.

A row's *candidates* are its own held-out rated cells and nothing else: what nobody rated is not
ranked. The higher score comes first; of equal scores the lower column number comes first, so the
order in which cells are given changes nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coterie.core.tensors.ordering import ascending
from coterie.core.tensors.stacked import Ragged

Empty = Literal["skip", "zero"]


def rmse(predicted: Tensor, observed: Tensor) -> float:
    """Root of the mean squared error over all cells.

    It is what ``torchmetrics.MeanSquaredError(squared=False)`` gives for cells added in parts.

    Args:
        predicted: ``(n,)``.
        observed: ``(n,)``.

    Returns:
        NaN where there are no cells.

    Example:
        >>> rmse(torch.tensor([1.0, 7.0]), torch.zeros(2))
        5.0
    """
    return (predicted.double() - observed.double()).square().mean().sqrt().item()


def sign_accuracy(logits: Tensor, relevant: Tensor) -> float:
    """Share of cells whose logit has the right sign; a logit of 0 says no.

    Args:
        logits: ``(n,)``.
        relevant: ``(n,)`` bool.

    Returns:
        NaN where there are no cells.

    Example:
        >>> sign_accuracy(torch.tensor([2.0, -1.0, 0.0]), torch.tensor([True, True, False]))
        0.6666666666666666
    """
    return ((logits > 0) == relevant.bool()).double().mean().item()


def average_precision(
    scores: Tensor, relevant: Tensor, candidates: Ragged, k: int, empty: Empty = "skip"
) -> Tensor:
    """AP@k of each row over its own candidates.

    The mean, over the relevant ones of the first k, of the precision at their places; 0 where none
    of the first k is relevant. ``torchmetrics.retrieval.RetrievalMAP`` gives the same for scores
    above 0; it finds nothing at other scores.

    Args:
        scores: ``(n,)`` finite floats, one a candidate.
        relevant: ``(n,)`` bool.
        candidates: column numbers of the rows' candidates, in any order, n in all.
        k: length of the list, at least 1.
        empty: what a row is worth that has candidates but no relevant one: "skip" gives NaN,
            which is not counted in a mean, "zero" gives 0.

    Returns:
        ``(n_rows,)`` float64 in [0, 1], NaN for rows without a candidate.

    Raises:
        ValueError: a score is NaN or infinite, a shape does not fit, or k is below 1.

    Example:
        >>> rows = Ragged.from_lists([[0, 1, 2], [0], []])
        >>> scores, liked = torch.tensor([0.9, 0.8, 0.7, 0.5]), torch.tensor([1, 0, 1, 0])
        >>> average_precision(scores, liked, rows, k=10)
        tensor([0.8333,    nan,    nan], dtype=torch.float64)
    """
    return _precision(ranking(scores, candidates, k), relevant, candidates, k, empty)


def _precision(order: Tensor, relevant: Tensor, candidates: Ragged, k: int, empty: Empty) -> Tensor:
    hit = relevant[order].double()
    found = _within_rows(hit.cumsum(0), candidates)
    listed = hit * (candidates.positions < k)
    precision = _row_sum(listed * found / (candidates.positions + 1), candidates)
    value = precision / _row_sum(listed, candidates).clamp(min=1.0)
    return _without_empty(value, _row_sum(hit, candidates), candidates, empty)


def ndcg(
    scores: Tensor, gains: Tensor, candidates: Ragged, k: int, empty: Empty = "skip"
) -> Tensor:
    """NDCG@k of each row over its own candidates: sum of gain / log2(place + 1) over the best one.

    Args:
        scores: as in `average_precision`.
        gains: ``(n,)`` what each candidate is worth, 0 or more; True counts 1.
        candidates: as in `average_precision`.
        k: length of the list, at least 1.
        empty: what a row is worth whose candidates all have the gain 0, as in
            `average_precision`.

    Returns:
        ``(n_rows,)`` float64 in [0, 1], NaN for rows without a candidate.

    Raises:
        ValueError: as `average_precision`, or a gain is negative.
    """
    if bool((gains < 0).any()):
        raise ValueError("a gain is negative")
    return _gain(ranking(scores, candidates, k), gains, candidates, k, empty)


def _gain(order: Tensor, gains: Tensor, candidates: Ragged, k: int, empty: Empty) -> Tensor:
    place = candidates.positions
    weight = torch.where(place < k, 1.0 / torch.log2(place.double() + 2), 0.0)
    best = _row_sum(_highest_first(gains, candidates) * weight, candidates)
    value = _row_sum(gains[order].double() * weight, candidates) / best.where(best > 0, 1.0)
    return _without_empty(value, best, candidates, empty)


def _highest_first(gains: Tensor, candidates: Ragged) -> Tensor:
    """Sort the gains of each row, ``(n,)`` float64."""
    if gains.dtype == torch.bool:  # counted, not sorted
        relevant = _row_sum(gains.double(), candidates)
        return (candidates.positions < relevant[candidates.rows]).double()
    gains = gains.double()
    return gains[_by_score(gains, candidates)]


def precision_and_ndcg(
    scores: Tensor, relevant: Tensor, candidates: Ragged, k: int, empty: Empty = "skip"
) -> tuple[Tensor, Tensor]:
    """`average_precision` and `ndcg` of the same lists, which are sorted but once."""
    order = ranking(scores, candidates, k)
    args = order, relevant, candidates, k, empty
    return _precision(*args), _gain(*args)


def ranking(scores: Tensor, candidates: Ragged, k: int) -> Tensor:
    """Positions of the candidates, row by row, in each row the best first.

    Arguments and errors as of `average_precision`.

    Returns:
        ``(n,)`` int64; the i-th of a row stands where the row's i-th candidate stood.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if scores.shape != candidates.values.shape:
        raise ValueError(f"{scores.numel()} scores for {candidates.values.numel()} candidates")
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("scores are NaN or infinite: the model has diverged")
    columns = candidates.values
    falls = bool((columns[1:] < columns[:-1])[candidates.positions[1:] > 0].any())
    if not falls:
        return _by_score(scores, candidates)
    by_column = torch.argsort(columns, stable=True)
    by_column = by_column[ascending(candidates.rows[by_column], len(candidates))]
    return by_column[_by_score(scores[by_column], candidates)]


def _by_score(scores: Tensor, candidates: Ragged) -> Tensor:
    """Positions by row, then from the highest score; equal ones as they stand."""
    order = torch.argsort(scores.detach(), descending=True, stable=True)
    return order[ascending(candidates.rows[order], len(candidates))]


def _within_rows(total: Tensor, rows: Ragged) -> Tensor:
    """Running sums of each row, of running sums over all."""
    before = torch.cat([total.new_zeros(1), total])[rows.offsets[:-1]]
    return total - before[rows.rows]


def _row_sum(values: Tensor, rows: Ragged) -> Tensor:
    return values.new_zeros(len(rows)).index_add_(0, rows.rows, values)


def _without_empty(value: Tensor, worth: Tensor, candidates: Ragged, empty: Empty) -> Tensor:
    nothing = worth == 0 if empty == "skip" else candidates.lengths == 0
    return value.masked_fill(nothing, torch.nan)


# RMSE and MAP as MTAL's public code averages them: by batches of rows, weighted by cells.
#
# The square root and the mean over rows are taken within each batch, so both depend on the size of
# the batches. They are there to compare with what that code prints; see
# `coterie.core.metrics.rated_cells` for the metrics themselves.


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
