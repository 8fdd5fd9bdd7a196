"""Rows in an order that depends on what they say alone, not on where they stood in a file.

Users and items are numbered by first appearance, so without this a file that is exported again in
another order would give other numbers to its users and items, and every draw would fall otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.tensors.masks import where_true


def canonical(interactions: Interactions) -> Interactions:
    """Sort rows by user, item, time, rating and part, ids by their text; number both anew.

    Rows that are equal in all of these are equal, so any order of the same rows gives the same.

    Example:
        >>> user, item = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])
        >>> data = Interactions(user, item, item, None, ["b", "a"], ["y", "x"], None, None, "mine")
        >>> found = canonical(data)
        >>> found.user_names, found.item_names, found.user.tolist(), found.item.tolist()
        (['a', 'b'], ['x', 'y'], [0, 0, 1], [0, 1, 1])
    """
    user = _places(interactions.user_names).index_select(0, interactions.user)
    item = _places(interactions.item_names).index_select(0, interactions.item)
    pair = user * interactions.n_items + item
    ordered, order = torch.sort(pair, stable=True)
    again = ordered[1:] == ordered[:-1]
    if bool(again.any()):
        # Few, as a rule: only they need the other columns.
        repeated = torch.zeros(len(interactions), dtype=torch.bool)
        repeated[1:] |= again
        repeated[:-1] |= again
        places = where_true(repeated)
        rows = order.index_select(0, places)
        order[places] = rows.index_select(0, _by_all(interactions, pair, rows))
    return interactions.take(order).renumbered()


def _by_all(interactions: Interactions, pair: Tensor, rows: Tensor) -> Tensor:
    """Order of some rows by pair, time, rating and part: the last key that is sorted by rules."""
    order = torch.arange(rows.numel())
    keys = (interactions.split, interactions.rating, interactions.time, pair)
    for key in (key for key in keys if key is not None):
        values = key.index_select(0, rows.index_select(0, order))
        order = order.index_select(0, torch.argsort(values, stable=True))
    return order


def _places(names: list[str]) -> Tensor:
    """Place of every number's name among all names in alphabetic order, ``(n,)`` int64."""
    found = torch.empty(len(names), dtype=torch.int64)
    found[torch.tensor(sorted(range(len(names)), key=names.__getitem__))] = torch.arange(len(names))
    return found
