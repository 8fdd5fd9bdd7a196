"""The k-core filter."""

from __future__ import annotations

import torch

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError


def k_core(interactions: Interactions, k: int) -> Interactions:
    """Keep the largest part in which every user and every item has at least k interactions.

    Users and items below k are dropped in turn until none is left below; rows keep their order,
    numbers are given anew by first appearance. A pair that occurs twice counts twice.

    Raises:
        UserError: if nothing is left, or k is negative.
    """
    if k < 0:
        raise UserError(f"k of the k-core is {k}: choose 0 (no filter) or more")
    user, item = interactions.user, interactions.item
    kept = torch.arange(len(interactions))
    while kept.numel():
        enough = torch.bincount(user[kept])[user[kept]] >= k
        enough &= torch.bincount(item[kept])[item[kept]] >= k
        if bool(enough.all()):
            break
        kept = kept[enough]
    if not kept.numel():
        raise UserError(f"nothing of {interactions.source} is left after the {k}-core: lower k")
    return interactions.take(kept).renumbered()
