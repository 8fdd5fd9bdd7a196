"""Places of a few items in the rankings of all items, found without sorting any.

The place of an item is the number of items before it: those with a larger score and, of equal
scores, those with a lower number. Only the first k places count, so most items need no counting: at
least k items are before one that scores less than k disjoint groups of items do at their best.

Scores are made, and looked at, a block of clients at a time, which stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from coterie.core.tensors.ordering import sorted_rows
from coterie.core.tensors.ragged import Ragged

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
