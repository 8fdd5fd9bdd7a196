"""Quality of recommendations, user by user (section 4.1.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.metrics.ranking import ndcg, recall, target_ranks, top_k
from coterie.llm.data.examples import Queries

LENGTHS = (10, 20)  # k
_AT_ONCE = 256
_METRICS = {"recall": recall, "ndcg": ndcg}
MEASURES = tuple(f"{name}@{k}" for name in _METRICS for k in LENGTHS)


def measure_users(score: Callable[[Queries], Tensor], queries: Queries) -> dict[str, Tensor]:
    """Rank all items for every user, those it had left out, and look for its targets.

    Args:
        score: gives ``(n, n_items)`` for some of the users.
        queries: n users.

    Returns:
        Recall and NDCG by name, as "recall@10", ``(n,)`` float64 each; infinity for a user whose
        scores are not finite, which the guard refuses.
    """
    found: dict[str, list[Tensor]] = {name: [torch.empty(0).double()] for name in MEASURES}
    for start in range(0, len(queries), _AT_ONCE):
        part = queries.take(torch.arange(start, min(start + _AT_ONCE, len(queries))))
        scores = score(part)
        broken = ~scores.isfinite().all(1)
        best = top_k(scores.masked_fill(broken[:, None], 0.0), max(LENGTHS), part.seen)
        rank = target_ranks(best, part.targets, scores.shape[1])
        for name, metric in _METRICS.items():
            for k in LENGTHS:
                values = metric(rank.clamp(max=k), part.targets, k)
                found[f"{name}@{k}"].append(values.masked_fill(broken, torch.inf))
    return {name: torch.cat(parts) for name, parts in found.items()}
