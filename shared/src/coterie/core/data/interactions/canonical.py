"""In which order rows stand, and a digest of them: what a run is made from.

Users and items are numbered by first appearance, so without this a file that is exported again in
another order would give other numbers to its users and items, and every draw would fall otherwise.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.tensors.ordering import where_true
from coterie.core.tensors.saved import digest


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


# A digest of interactions: what a run, or a result that is kept, was made from.


def data_digest(interactions: Interactions) -> str:
    """Hash who touched what and when, how it was rated, all ids, and what is known of them.

    Not where the rows came from: the same rows elsewhere, or in another format, are the same data.
    Rows count in their order, which is canonical for a file of the user's own
    (`coterie.core.data.interactions.canonical`).
    """
    values = dict(vars(interactions))
    del values["source"]
    return digest(values)


# The mark of an export, by which its rows are read back in the order that they had.
#
# A file of the user's own is sorted, since the order of its rows means nothing. An export of a
# known data set has that set's order, and with it the numbers of users and items: read back in that
# order, a run makes the same numbers. The mark is a digest; rows that were changed since are
# sorted.

MARK = "_coterie.json"


def exportable(found: Interactions) -> Interactions:
    """Interactions without what files of one's own have no column for, and what filters noted.

    Titles are trimmed, as they are in every file of one's own.
    """
    titles = found.titles and [title.strip() for title in found.titles]
    return replace(found, titles=titles, brands=None, user_features=None, dropped=(), besides=None)


def mark_of(found: Interactions) -> str:
    """The text of the mark."""
    return json.dumps({"digest": data_digest(exportable(found))}) + "\n"


def is_as_exported(path: Path, found: Interactions) -> bool:
    """Whether what was found at a path is an export whose rows are as they were written."""
    try:
        mark = (path / MARK).read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return mark == mark_of(found)
