"""Full-ranking metrics, one value a client; pure torch, so that a client process can use them.

Every item that is not left out is ranked. The higher score comes first; of equal scores the lower
item number comes first. Each client's value depends on its own row alone, so the way in which
clients are cut into chunks changes nothing, not even a bit.

A client without a target has no value: its entry is NaN and it is not counted in a mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.metrics.target_ranks import check_range, copies_of, find_targets, not_finite
from coterie.core.tensors.ragged import Ragged


@dataclass(frozen=True)
class RankingMetrics:
    """Ranking quality of each client, float64 in [0, 1], NaN for a client without a target.

    Attributes:
        ndcg: ``(C,)`` normalised discounted cumulative gain at k.
        recall: ``(C,)`` share of the targets among the first k items.
        hr: ``(C,)`` hit rate: 1 if any target is among the first k items.
        mrr: ``(C,)`` reciprocal rank of the first target, 0 if it is not among the first k.
    """

    ndcg: Tensor
    recall: Tensor
    hr: Tensor
    mrr: Tensor


def ranking_metrics(
    scores: Tensor, targets: Ragged, k: int, excluded: Tensor | Ragged | None = None
) -> RankingMetrics:
    """Rank all items of each client and compare the first k with its targets.

    Args:
        scores: ``(C, n_items)`` finite floats.
        targets: C rows of distinct item numbers. A target that is also excluded is never found,
            and counts as a miss.
        k: length of the list, at least 1; it may exceed ``n_items``.
        excluded: items left out of the ranking: ``(C, n_items)`` bool, or C rows of item numbers.

    Raises:
        ValueError: a score is NaN or infinite, a shape does not fit, or a target is out of range
            or named twice for one client.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7, 0.1], [0.0, 0.0, 0.0, 0.0]])
        >>> found = ranking_metrics(scores, Ragged.from_lists([[1, 3], []]), k=2)
        >>> [round(x, 4) for x in (found.ndcg[0].item(), found.recall[0].item())]
        [0.3869, 0.5]
        >>> found.mrr.tolist()
        [0.5, nan]
    """
    _check(scores, k)
    if len(targets) != scores.shape[0]:
        raise ValueError(f"targets has {len(targets)} rows for {scores.shape[0]} clients")
    left_out = _as_rows(scores, excluded)
    rank, broken = find_targets(copies_of(scores), targets, k, left_out, scores.shape[1])
    _refuse(broken)
    return RankingMetrics(
        ndcg=ndcg(rank, targets, k),
        recall=recall(rank, targets, k),
        hr=hit_rate(rank, targets, k),
        mrr=reciprocal_rank(rank, targets, k),
    )


def top_k(scores: Tensor, k: int, excluded: Tensor | Ragged | None = None) -> Tensor:
    """Items of the k highest scores, best first, equal scores by ascending item number.

    Args:
        scores: ``(C, n_items)`` finite floats.
        k: length of the lists, at least 1.
        excluded: as in `ranking_metrics`.

    Returns:
        ``(C, k)`` int64 item numbers; -1 fills up where fewer than k items can be ranked.

    Raises:
        ValueError: a score is NaN or infinite, or a shape does not fit.

    Example:
        >>> top_k(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3).tolist()
        [[1, 2, 3]]
    """
    _check(scores, k)
    _refuse(not_finite(scores))
    open_scores = _exclude(scores, k, excluded)
    # One item more than asked for shows whether the last place is tied.
    length = min(k + 1, open_scores.shape[1])
    values, items = open_scores.topk(length)
    tied = ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)).any(1).nonzero()[:, 0]
    if tied.numel():  # topk leaves the order of equal scores open, a stable sort does not
        ordered = open_scores[tied].sort(descending=True, stable=True).indices
        items[tied] = ordered[:, :length]
        values[tied] = open_scores[tied].gather(1, ordered[:, :length])
    items = items.masked_fill(values == -torch.inf, -1)[:, :k]
    return torch.nn.functional.pad(items, (0, k - items.shape[1]), value=-1)


def ndcg(rank: Tensor, targets: Ragged, k: int) -> Tensor:
    """NDCG@k with binary gains: sum of 1/log2(rank + 2) over that of the best possible list.

    The best possible list has min(k, number of targets) hits (Järvelin and Kekäläinen, TOIS 2002).

    Args:
        rank: ``(n,)`` from `find_targets`.
        targets: C rows.
        k: length of the list.

    Returns:
        ``(C,)`` float64, NaN for clients without a target.
    """
    discount = torch.log2(torch.arange(2, k + 2, dtype=torch.float64)).reciprocal()
    gain = torch.cat([discount, discount.new_zeros(1)])[rank]
    ideal = torch.cat([discount.new_zeros(1), discount.cumsum(0)])[targets.lengths.clamp(max=k)]
    return _row_sum(gain, targets) / ideal


def recall(rank: Tensor, targets: Ragged, k: int) -> Tensor:
    """Recall@k: found targets over all targets, ``(C,)``; arguments as in `ndcg`."""
    return _row_sum((rank < k).double(), targets) / targets.lengths


def hit_rate(rank: Tensor, targets: Ragged, k: int) -> Tensor:
    """HR@k: 1 where at least one target is found, ``(C,)``; arguments as in `ndcg`."""
    hits = _row_sum((rank < k).double(), targets)
    return hits.clamp(max=1.0).masked_fill(targets.lengths == 0, torch.nan)


def reciprocal_rank(rank: Tensor, targets: Ragged, k: int) -> Tensor:
    """MRR@k: 1 / place of the first found target, from 1; 0 if none; arguments as in `ndcg`."""
    value = torch.where(rank < k, 1.0 / (rank + 1.0).double(), 0.0)
    best = value.new_zeros(len(targets)).scatter_reduce(0, targets.rows, value, "amax")
    return best.masked_fill(targets.lengths == 0, torch.nan)


def _row_sum(value: Tensor, targets: Ragged) -> Tensor:
    return value.new_zeros(len(targets)).index_add_(0, targets.rows, value)


def _check(scores: Tensor, k: int) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if scores.dim() != 2 or not scores.is_floating_point():
        shape, kind = tuple(scores.shape), scores.dtype
        raise ValueError(f"scores must be (C, n_items) floats, got {shape} {kind}")


def _as_rows(scores: Tensor, excluded: Tensor | Ragged | None) -> tuple[Ragged, ...]:
    """What is left out as rows of item numbers."""
    if excluded is None:
        return ()
    if isinstance(excluded, Ragged):
        return (excluded,)
    _check_table(scores, excluded)
    return (Ragged.from_lengths(excluded.nonzero()[:, 1], excluded.sum(1)),)


def _check_table(scores: Tensor, excluded: Tensor) -> None:
    if excluded.shape != scores.shape or excluded.dtype != torch.bool:
        shape, kind = tuple(excluded.shape), excluded.dtype
        raise ValueError(f"excluded must be {tuple(scores.shape)} bool, got {shape} {kind}")


def _refuse(broken: Tensor) -> None:
    bad = broken.nonzero()[:, 0]
    if bad.numel():
        named = ", ".join(map(str, bad[:5].tolist())) + (", ..." if bad.numel() > 5 else "")
        raise ValueError(
            f"scores of {bad.numel()} of {broken.numel()} clients are NaN or infinite "
            f"(rows {named}): the model has diverged, or its input is not finite"
        )


def _exclude(scores: Tensor, k: int, excluded: Tensor | Ragged | None) -> Tensor:
    """Copy with -inf at excluded items, padded with -inf to the width at which topk is fast."""
    n_clients, n_items = scores.shape
    # torch.topk on the CPU takes its faster partial sort from 64 columns an element on.
    width = 64 * (k + 1)
    width = width if n_items < width <= 2 * n_items else n_items
    open_scores = scores.new_full((n_clients, width), -torch.inf)
    open_scores[:, :n_items] = scores.detach()
    if isinstance(excluded, Ragged):
        if len(excluded) != n_clients:
            raise ValueError(f"excluded has {len(excluded)} rows for {n_clients} clients")
        check_range("excluded item", excluded.values, n_items)
        open_scores[excluded.rows, excluded.values] = -torch.inf
    elif excluded is not None:
        _check_table(scores, excluded)
        open_scores[:, :n_items].masked_fill_(excluded, -torch.inf)
    return open_scores
