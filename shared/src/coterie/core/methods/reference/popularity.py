"""Popularity: the same ranking for everybody."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.tensors.ragged import Ragged


def popularity(train: Ragged, n_items: int) -> Tensor:
    """Count the training interactions of every item.

    Args:
        train: one row of item numbers a user.
        n_items: number of items.

    Returns:
        ``(n_items,)`` float32 scores; ``scores.expand(C, -1)`` ranks for C users.

    Raises:
        ValueError: an item number is not in 0..n_items - 1.

    Example:
        >>> popularity(Ragged.from_lists([[0, 2], [2]]), 3).tolist()
        [1.0, 0.0, 2.0]
    """
    items = train.values
    if items.numel() and not 0 <= int(items.min()) <= int(items.max()) < n_items:
        raise ValueError(f"an item of the training rows is outside 0..{n_items - 1}")
    return torch.bincount(items, minlength=n_items).float()
