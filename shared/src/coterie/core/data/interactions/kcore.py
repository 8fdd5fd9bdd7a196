"""The k-core filter."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.masks import where_true


def k_core(interactions: Interactions, k: int) -> Interactions:
    """Keep the largest part in which every user and every item has at least k interactions.

    Users and items below k are dropped in turn until none is left below; rows keep their order,
    numbers are given anew by first appearance. A pair that occurs twice counts twice.

    Raises:
        UserError: if nothing is left, or k is negative.
    """
    if k < 0:
        raise UserError(f"k of the k-core is {k}: choose 0 (no filter) or more")
    stays = _staying(interactions, k)
    if not bool(stays.any()):
        raise UserError(
            f"nothing of {interactions.source} is left after the {k}-core: give a smaller "
            "--data.min_interactions"
        )
    why = f"of users or items with fewer than {k} interactions (the {k}-core)"
    return interactions.without(~stays, why).renumbered()


def _staying(interactions: Interactions, k: int) -> Tensor:
    """Which rows are in the k-core, ``(n,)`` bool."""
    user, item = interactions.user, interactions.item
    of_user = torch.bincount(user, minlength=interactions.n_users)
    of_item = torch.bincount(item, minlength=interactions.n_items)
    stays = torch.ones(len(interactions), dtype=torch.bool)
    while _some_below(of_user, k) or _some_below(of_item, k):
        # Whoever was dropped has 0 rows left, so a row that went does not come back.
        now = (of_user >= k).index_select(0, user) & (of_item >= k).index_select(0, item)
        gone = where_true(stays & ~now)
        of_user -= torch.bincount(user.index_select(0, gone), minlength=of_user.numel())
        of_item -= torch.bincount(item.index_select(0, gone), minlength=of_item.numel())
        stays = now
    return stays


def _some_below(count: Tensor, k: int) -> bool:
    return bool(((count > 0) & (count < k)).any())
