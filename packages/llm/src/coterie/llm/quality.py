"""Quality of recommendations, user by user (section 4.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.core.metrics.ranking_report import rank_all
from coterie.core.tensors.ragged import Ragged
from coterie.llm.data.examples import Queries

LENGTHS = (10, 20)  # k
_AT_ONCE = 256
MEASURES = tuple(f"{name}@{k}" for name in ("recall", "ndcg") for k in LENGTHS)


def measure_rows(
    score: Callable[[Tensor], Tensor],
    seen: Ragged,
    targets: Ragged,
    lengths: Sequence[int] = LENGTHS,
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
    found = rank_all(score(rows), targets.take(rows), lengths, seen.take(rows))
    measured[:, rows] = torch.stack([found.recall, found.ndcg])
    return measured


def measure_users(score: Callable[[Queries], Tensor], queries: Queries) -> dict[str, Tensor]:
    """Measure as `measure_rows` does, some users at a time.

    Args:
        score: gives ``(n, n_items)`` for some of the users.
        queries: n users.

    Returns:
        Recall and NDCG by name, as "recall@10", ``(n,)`` float64 each.
    """
    found = [torch.empty(2, 0, len(LENGTHS), dtype=torch.float64)]
    for index in torch.arange(len(queries)).split(_AT_ONCE):
        part = queries.take(index)
        found.append(measure_rows(_scorer(score, part), part.seen, part.targets))
    columns = torch.cat(found, dim=1).movedim(1, 2).flatten(0, 1)
    return dict(zip(MEASURES, columns, strict=True))


def _scorer(score: Callable[[Queries], Tensor], part: Queries) -> Callable[[Tensor], Tensor]:
    return lambda rows: score(part.take(rows))
