"""Ratings as known cells of a matrix: there are some, they are in range, no cell is there twice."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.interactions.splits import first_of_pair
from coterie.core.errors import UserError
from coterie.core.tensors.ordering import ascending


def rated(interactions: Interactions, scale: tuple[float, float] | None = None) -> Interactions:
    """Keep one rating of each user for each item, the first in the order of the rows.

    Args:
        interactions: with ratings.
        scale: lowest and highest rating that there may be, or None for any.

    Raises:
        UserError: there are no ratings, or one is outside the scale.
    """
    ratings = require_ratings(interactions)
    if scale is not None:
        outside = (ratings < scale[0]) | (ratings > scale[1])
        if bool(outside.any()):
            raise UserError(
                f"{interactions.source} has a rating of {float(ratings[outside][0]):g}, outside "
                f"the scale from {scale[0]:g} to {scale[1]:g}: correct the file or the scale"
            )
    pair = interactions.user * interactions.n_items + interactions.item
    ordered = pair[ascending(pair, interactions.n_users * interactions.n_items)]
    if not bool((ordered[1:] == ordered[:-1]).any()):
        return interactions
    again = torch.ones(len(interactions), dtype=torch.bool)
    again[first_of_pair(interactions.user, interactions.item, interactions.n_items)] = False
    return interactions.without(again, "later ratings of an item by the same user")


def require_ratings(interactions: Interactions) -> Tensor:
    """Return the ratings, ``(n,)`` float32.

    Raises:
        UserError: there are none.
    """
    if interactions.rating is None:
        raise UserError(
            f"{interactions.source} has no ratings: choose a data set with ratings, or name the "
            "column of a file of yours by --data.columns rating=COLUMN"
        )
    return interactions.rating
