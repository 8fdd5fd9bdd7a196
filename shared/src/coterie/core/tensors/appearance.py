"""Where numbers occur for the first time."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.tensors.masks import where_true

_CHUNK = 1 << 16


def first_places(numbers: Tensor, above: int) -> Tensor:
    """Place at which each number occurs for the first time.

    This looks at no more of the list than it takes to have seen every number.

    Args:
        numbers: ``(n,)`` whole numbers in [0, above).
        above: the numbers' upper end.

    Returns:
        ``(above,)`` int64 places; n for a number that does not occur.

    Example:
        >>> first_places(torch.tensor([2, 0, 2]), 4).tolist()
        [1, 3, 0, 3]
    """
    n = numbers.numel()
    first = torch.full((above,), n)
    for start in range(0, n, _CHUNK):
        chunk = numbers[start : start + _CHUNK].long()
        first.scatter_reduce_(0, chunk, torch.arange(start, start + chunk.numel()), "amin")
        if bool((first < n).all()):
            break  # places ascend, so none of the later ones is the first
    return first


def by_first_appearance(numbers: Tensor, above: int) -> tuple[Tensor, Tensor]:
    """Number what occurs anew, in the order of first appearance; arguments as of `first_places`.

    Returns:
        New number of every element, ``(n,)`` int64, and the old number of every new one,
        ``(k,)`` int64 for the k numbers that occur.

    Example:
        >>> new, old = by_first_appearance(torch.tensor([2, 0, 2]), 4)
        >>> new.tolist(), old.tolist()
        ([0, 1, 0], [2, 0])
    """
    first = first_places(numbers, above)
    n_found = int((first < numbers.numel()).sum())
    old = torch.argsort(first)[:n_found]
    new = torch.empty_like(first)
    new[old] = torch.arange(n_found)
    return new.index_select(0, numbers), old


def by_number(numbers: Tensor, above: int) -> tuple[Tensor, Tensor]:
    """Number what occurs anew, in ascending order: a unique with its inverse, without a sort.

    Arguments as of `first_places`.

    Returns:
        What occurs, ``(k,)`` int64 ascending, and the place of every element in it, ``(n,)`` int64.

    Example:
        >>> found, place = by_number(torch.tensor([5, 0, 5]), 9)
        >>> found.tolist(), place.tolist()
        ([0, 5], [1, 0, 1])
    """
    found = where_true(torch.bincount(numbers, minlength=above) > 0)
    if found.numel() == above:
        return found, numbers
    place = torch.empty(above, dtype=torch.int64)
    place[found] = torch.arange(found.numel())
    return found, place.index_select(0, numbers)
