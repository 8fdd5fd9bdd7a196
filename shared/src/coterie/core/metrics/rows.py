"""Recall and NDCG of users whose items are ranked by a scoring function, several k at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.core.metrics.ranking import ndcg, recall, target_ranks, top_k
from coterie.core.tensors.ragged import Ragged

METRICS = {"recall": recall, "ndcg": ndcg}
"""By name, in the order in which `measure_rows` gives them."""


def measure_rows(
    score: Callable[[Tensor], Tensor],
    seen: Ragged,
    targets: Ragged,
    lengths: Sequence[int],
) -> Tensor:
    """Rank all items for every user, those it had left out, and look for its targets.

    Args:
        score: scores all items for the users at some positions, ``(m,)`` int64 ->
            ``(m, n_items)``; called once, for those who are measured.
        seen: n rows of items, what each user had.
        targets: n rows of items to be found.
        lengths: the K values of k.

    Returns:
        Recall and NDCG, ``(2, n, K)`` float64, a column for each k; NaN for a user who had
        nothing or has nothing to find, infinity for one whose scores are not finite, which the
        guard refuses, so that it drops out alone and by name.
    """
    measured = torch.full((2, len(seen), len(lengths)), torch.nan, dtype=torch.float64)
    rows = ((seen.lengths > 0) & (targets.lengths > 0)).nonzero().flatten()
    if not rows.numel():
        return measured
    scores, targets = score(rows), targets.take(rows)
    broken = ~scores.isfinite().all(1)[:, None]
    best = top_k(scores.masked_fill(broken, 0.0), max(lengths), seen.take(rows))
    rank = target_ranks(best, targets, scores.shape[1])
    for place, metric in enumerate(METRICS.values()):
        columns = torch.stack([metric(rank.clamp(max=k), targets, k) for k in lengths], dim=1)
        measured[place, rows] = columns.masked_fill(broken, torch.inf)
    return measured
