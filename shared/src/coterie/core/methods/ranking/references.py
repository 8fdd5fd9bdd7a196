"""References beside the recommenders: popularity, and the deviations of users and items."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.tensors.stacked import Ragged


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


# Bias model of explicit ratings: mean, item and user deviations, no interaction.


@dataclass(frozen=True)
class BiasModel:
    """Rating r_ui = mean + user[u] + item[i]."""

    mean: Tensor  # ()
    user: Tensor  # (n_users,)
    item: Tensor  # (n_items,)

    def predict(self, user: Tensor, item: Tensor) -> Tensor:
        """Ratings of pairs; ``user`` and ``item`` are int64 and broadcast."""
        return self.mean + self.user[user] + self.item[item]


def fit_bias(
    user: Tensor,
    item: Tensor,
    rating: Tensor,
    n_users: int,
    n_items: int,
    item_damping: float = 25.0,
    user_damping: float = 10.0,
) -> BiasModel:
    """Fit damped deviations in two passes, items first (Koren, TKDD 4(1), 2010, section 2.1).

    b_i = sum(r - mean) / (item_damping + n_i), then b_u = sum(r - mean - b_i) / (user_damping +
    n_u): the damping is the number of ratings at which a deviation counts half.

    Args:
        user: ``(n,)`` int64.
        item: ``(n,)`` int64.
        rating: ``(n,)`` float.
        n_users: number of users; those without a rating get 0.
        n_items: number of items; those without a rating get 0.
        item_damping: at least 0, in ratings.
        user_damping: at least 0, in ratings.

    Raises:
        ValueError: there is no rating.

    Example:
        >>> one = torch.tensor([0])
        >>> fit_bias(one, one, torch.tensor([4.0]), 2, 2).predict(one, one).item()
        4.0
    """
    if not rating.numel():
        raise ValueError("a bias model needs at least one rating")
    mean = rating.mean()
    of_item = _damped_mean(rating - mean, item, n_items, item_damping)
    of_user = _damped_mean(rating - mean - of_item[item], user, n_users, user_damping)
    return BiasModel(mean, of_user, of_item)


def _damped_mean(value: Tensor, group: Tensor, n_groups: int, damping: float) -> Tensor:
    total = value.new_zeros(n_groups).index_add_(0, group, value)
    count = torch.bincount(group, minlength=n_groups)
    return torch.where(count > 0, total / (count + damping), 0.0)
