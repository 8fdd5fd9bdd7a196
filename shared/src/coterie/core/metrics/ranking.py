"""Full-ranking metrics, one value a client; pure torch, so that a client process can use them.

The place of an item is the number of items before it: those with a larger score and, of equal
scores, those with a lower number. Only the first k places count, so most items need no counting: at
least k items are before one that scores less than k disjoint groups of items do at their best.

Scores are made, and looked at, a block of clients at a time, which stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.tensors.ordering import sorted_rows
from coterie.core.tensors.stacked import Ragged

ScoreRows = Callable[[slice], Tensor]
"""Scores all items for neighbouring clients, ``(rows, n_items)``; who asks may write into them."""
_BLOCK = 2 << 20
"""Bytes of the scores of a block: measured, four times as many or a quarter are slower."""
_GPU_BLOCK = 512 << 20
"""The same on a GPU, whose memory is to be filled."""
_FEWEST = 64
"""Clients of a block at least, since it is one matrix product."""
_GROUPS = 6
"""Groups of items for each place in the list, at least; few leave more items to be counted for."""


def blocks_of(
    n_clients: int, n_items: int, itemsize: int = 4, *, memory: int = _BLOCK
) -> Iterator[slice]:
    """Cut clients into blocks whose scores stay in the cache.

    The last one takes a small rest along: products of few rows round differently.

    Args:
        n_clients: C.
        n_items: scores of each.
        itemsize: bytes of a score.
        memory: bytes of a block.

    Example:
        >>> [block.stop for block in blocks_of(70, 10**6)], [*blocks_of(0, 5)]
        ([70], [])
    """
    size = max(_FEWEST, memory // max(n_items * itemsize, 1))
    first = 0
    while first < n_clients:
        last = first + size
        last = n_clients if n_clients - last < _FEWEST else last
        yield slice(first, last)
        first = last


def find_targets(
    score: ScoreRows, targets: Ragged, k: int, excluded: Sequence[Ragged], n_items: int
) -> tuple[Tensor, Tensor]:
    """Find the place of every target in its client's list of k items.

    Args:
        score: of the C clients, asked for a block at a time.
        targets: C rows, n item numbers in all; one that is also excluded is never listed.
        k: length of the lists, at least 1.
        excluded: items left out of the ranking, C rows of item numbers each.
        n_items: number of items.

    Returns:
        ``(n,)`` int64 places, aligned with ``targets.values``: 0 for the first, k if not listed;
        and ``(C,)`` bool, whose scores are not all finite. These clients' places mean nothing.

    Raises:
        ValueError: a number of rows differs, an item is out of range, a target is named twice.

    Example:
        >>> scores, targets = torch.tensor([[0.1, 0.9, 0.5, 0.7]]), Ragged.from_lists([[0, 3, 1]])
        >>> find_targets(lambda rows: scores[rows].clone(), targets, 2, (), 4)[0].tolist()
        [2, 1, 0]
    """
    n_clients = len(targets)
    _check_targets(targets, n_items)
    for rows in excluded:
        if len(rows) != n_clients:
            raise ValueError(f"excluded has {len(rows)} rows for {n_clients} clients")
        check_range("excluded item", rows.values, n_items)
    rank = torch.full_like(targets.values, k, dtype=torch.int64)
    broken = torch.zeros(n_clients, dtype=torch.bool)
    memory = _GPU_BLOCK if targets.values.is_cuda else _BLOCK
    for block in blocks_of(n_clients, n_items, memory=memory):
        scores = _comparable(score(block))
        broken[block] = not_finite(scores)
        for rows in excluded:
            _, cells = _cells(rows, block, n_items)
            scores.view(-1).index_fill_(0, cells, -torch.inf)
        own, cells = _cells(targets, block, n_items)
        rank[own] = _places(scores, cells, k)
    return rank, broken


def copies_of(scores: Tensor) -> ScoreRows:
    """Give scores ``(C, n_items)`` that are there already, to be written into without harm."""
    return lambda rows: scores[rows].detach().clone()


def check_range(name: str, items: Tensor, n_items: int) -> None:
    """Check item numbers.

    Raises:
        ValueError: one is out of range.
    """
    if items.numel() and not 0 <= int(items.min()) <= int(items.max()) < n_items:
        raise ValueError(
            f"{name} numbers run from {int(items.min())} to {int(items.max())}, "
            f"outside 0..{n_items - 1}"
        )


def not_finite(scores: Tensor) -> Tensor:
    """Which clients have a score that is NaN or infinite, ``(C,)`` bool."""
    # A sum is 40 times cheaper than a test of each score; only doubtful sums need the test.
    broken = ~scores.sum(1).isfinite()
    if bool(broken.any()):
        doubtful = broken.nonzero().flatten()
        broken[doubtful] = ~scores[doubtful].isfinite().all(1)
    return broken


def _comparable(scores: Tensor) -> Tensor:
    """The same in a type whose sums count exactly."""
    known = scores.dtype in (torch.float32, torch.float64)
    return (scores if known else scores.float()).contiguous()


def _cells(rows: Ragged, block: slice, n_items: int) -> tuple[slice, Tensor]:
    """Where a block's items stand among all, and in its table of scores, end to end."""
    own = slice(int(rows.offsets[block.start]), int(rows.offsets[block.stop]))
    return own, (rows.rows[own] - block.start) * n_items + rows.values[own]


def _places(scores: Tensor, cells: Tensor, k: int) -> Tensor:
    """Places of the items at ``cells``, ``(m,)`` int64, among ``(rows, n_items)``, k at most."""
    n_items = scores.shape[1]
    rank = torch.full_like(cells, k)
    value = scores.view(-1)[cells]
    row = cells.div(max(n_items, 1), rounding_mode="floor")
    near = ((value >= _bound(scores, k)[row]) & (value > -torch.inf)).nonzero().flatten()
    for some in near.split(max(_FEWEST, scores.shape[0])):
        table, own = scores.index_select(0, row[some]), value[some, None]
        # Written as numbers: comparisons that give booleans take four times as long.
        above = torch.gt(table, own, out=torch.empty_like(table)).sum(1)
        tied = ((table.ge_(own).sum(1) - above) > 1).nonzero().flatten()
        if tied.numel():
            equal = scores.index_select(0, row[some[tied]]) == own[tied]
            before = torch.arange(n_items) < (cells[some[tied]] % n_items)[:, None]
            above[tied] += (equal & before).sum(1)
        rank[some] = above.long().clamp_(max=k)
    return rank


def _bound(scores: Tensor, k: int) -> Tensor:
    """A score below which no item is among the first k of its row, ``(rows,)``."""
    n_items = scores.shape[1]
    size = 1 << max(n_items // (_GROUPS * k), 1).bit_length() - 1
    count = n_items // size
    if count < k:
        return scores.new_full((scores.shape[0],), -torch.inf)
    best = scores[:, : size * count]
    while size > 1:  # groups interleave, so that the larger of halves runs along the rows
        size //= 2
        best = torch.maximum(best[:, : size * count], best[:, size * count :])
    return sorted_rows(best)[:, -k]


def _check_targets(targets: Ragged, n_items: int) -> None:
    check_range("target", targets.values, n_items)
    address = sorted_rows((targets.rows * n_items + targets.values)[None])[0]
    twice = address[1:][address[1:] == address[:-1]]
    if twice.numel():
        row, item = divmod(int(twice[0]), n_items)
        raise ValueError(f"item {item} is named twice among the targets of client row {row}")


# Full-ranking metrics, one value a client; pure torch, so that a client process can use them.
#
# Every item that is not left out is ranked. The higher score comes first; of equal scores the lower
# item number comes first. Each client's value depends on its own row alone, so the way in which
# clients are cut into chunks changes nothing, not even a bit.
#
# A client without a target has no value: its entry is NaN and it is not counted in a mean.


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
