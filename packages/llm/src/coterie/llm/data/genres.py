"""Clients by what their users like: the genre that stands out most in a user's history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.data.partition import by_size, known_rows
from coterie.llm.data.split import GlobalSplit

_NONE = ""  # the brand of an item of which it is not known


def genre_users(
    split: GlobalSplit, users: Tensor, n_clients: int, items: Interactions, key: Key
) -> Tensor:
    """Share users out among clients by the genre that stands out most in their train items.

    A genre stands out by p log(p / b): p is its share of the user's items, where an item of several
    genres counts for each as an equal part, and b that of all these users' train items. The
    logarithm of the lift p / b alone would name the rarest genre of a history; times p it is the
    genre's part of the Kullback-Leibler divergence.

    The clients are the K genres that stand out for most users. The others go to that of the K which
    stands out most for them, or if none does has the highest lift; who has no item of the K has a
    client drawn. Brands are the genres where the source has none. A user without train items is
    placed by validation items, as in `coterie.llm.data.partition.cluster_users`.

    Args:
        split: of the interactions.
        users: ``(m,)`` int64, those to share out, each with a train or validation item.
        n_clients: K.
        items: that have genres or brands.
        key: of the draw.

    Returns:
        ``(m,)`` int64, the client of each user; client 0 has the most users, and none is empty.

    Raises:
        UserError: the items have neither genres nor brands, or fewer than K stand out.
    """
    of_items, names = _genres(items)
    rows, trained = known_rows(split, users)
    share, lift = shares(rows, trained, of_items, len(names))
    stands_out = torch.xlogy(share, lift)
    first = stands_out.argmax(1)[stands_out.amax(1) > 0]
    counts = torch.bincount(first, minlength=len(names))
    found = int((counts > 0).sum())
    if found < n_clients:
        raise UserError(
            f"{n_clients} clients, but only {found} genres or brands of {items.source} stand out "
            f"in the history of a user: choose at most {max(found, 1)} clients"
        )
    chosen = torch.argsort(counts, descending=True, stable=True)[:n_clients]
    client = key.fold("genres").integers(n_clients, users)
    for score in (lift[:, chosen], stands_out[:, chosen]):
        best, place = score.max(1)
        client = place.where(best > 0, client)
    return by_size(client, n_clients)


def shares(
    rows: Ragged, fit: Tensor, of_items: Sequence[Sequence[int]], n_genres: int
) -> tuple[Tensor, Tensor]:
    """Share p of every genre in every history, and its lift p / b, ``(m, G)`` float64 each.

    Args:
        rows: items of m users.
        fit: ``(m,)`` bool, the users whose histories make up b.
        of_items: numbers of every item's genres, below G.
        n_genres: G.

    Example:
        >>> rows, both = Ragged.from_lists([[0, 0], [0, 1]]), torch.tensor([True, True])
        >>> share, lift = shares(rows, both, [[0], [1]], 2)
        >>> share.tolist(), lift[1].tolist()
        ([[1.0, 0.0], [0.5, 0.5]], [0.6666666666666666, 2.0])
    """
    lengths = [len(genres) for genres in of_items]
    each = np.repeat([1.0 / max(n, 1) for n in lengths], lengths)
    numbers = np.array([genre for genres in of_items for genre in genres], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    genres = sparse.csr_matrix((each, numbers, offsets), (len(of_items), n_genres))
    ones = np.ones(rows.values.numel())
    shape = (len(rows), len(of_items))
    history = sparse.csr_matrix((ones, rows.values.numpy(), rows.offsets.numpy()), shape)
    counts = torch.from_numpy((history @ genres).toarray())
    share, base = (n / n.sum(-1, keepdim=True).clamp_min(1) for n in (counts, counts[fit].sum(0)))
    # A genre of validation items alone has no base rate: it stands out nowhere.
    return share, (share / base).where(base > 0, 0.0)


def _genres(items: Interactions) -> tuple[list[list[int]], list[str]]:
    """Numbers of the genres of every item, in alphabetical order, and what they are called."""
    of_items = items.genres
    if of_items is None and items.brands is not None:
        of_items = [[brand] for brand in items.brands]
    if of_items is None:
        raise UserError(
            f"{items.source} has neither genres nor brands of its items to share users out by: "
            "use another --data.partition, or data with them (--data.columns genres=COLUMN)"
        )
    names = sorted({name for own in of_items for name in own} - {_NONE})
    number = {name: place for place, name in enumerate(names)}
    return [[number[name] for name in own if name != _NONE] for own in of_items], names
