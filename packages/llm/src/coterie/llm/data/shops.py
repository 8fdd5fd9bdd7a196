"""Clients that sell different things: every user has an account at every shop where it buys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.samples.partitions import dirichlet
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key, unit
from coterie.core.tensors.stacked import Ragged
from coterie.llm.data.examples import GlobalSplit, emptied
from coterie.llm.data.partition import by_size, k_means, user_vectors

_DIM = 16  # of the item vectors that are clustered
_PER_SHOP = 4  # clusters of items for every shop
_PUBLIC = -1  # the shop of who is no customer
_LEAST = 0.1  # of an equal part of the train interactions, which every shop has at least


@dataclass(frozen=True)
class Accounts:
    """Users, taken apart by shop.

    Attributes:
        interactions: the same rows, whose users are accounts; that of "ann" at shop 2 is "ann@2".
            Public users are as they were.
        split: of the accounts.
        shop: ``(n_accounts,)`` int64, the client of every account; -1 for a public user, whose only
            one is itself.
    """

    interactions: Interactions
    split: GlobalSplit
    shop: Tensor  # (n_accounts,) int64


def open_accounts(
    interactions: Interactions,
    split: GlobalSplit,
    public: Tensor,
    n_clients: int,
    skew: float,
    key: Key,
) -> Accounts:
    """Send every interaction of a user who is not public to one of K shops.

    Items are clustered, see `item_clusters`. The train interactions with a cluster are divided
    among the shops in ratios from Dir(skew) by `coterie.core.data.samples.partitions.dirichlet`;
    later ones go to a shop drawn by the ratios that this gave. So neither validation nor test items
    have any influence on where others are.

    Args:
        interactions: of all users.
        split: of them.
        public: ``(m,)`` int64 users who are nobody's customers.
        n_clients: K shops; shop 0 has the most accounts.
        skew: concentration; if it is small, each cluster is sold in one shop, if it is large, all
            are sold in all.
        key: of the clusters' starts, the division and the draws.

    Raises:
        UserError: no division gives every shop something to train on.
    """
    private = torch.ones(split.n_users, dtype=torch.bool).index_fill_(0, public, False)
    train = emptied(split.train, private)
    cluster = item_clusters(train, interactions.n_items, _PER_SHOP * n_clients, key)
    sold = _divided(train, cluster, n_clients, skew, key)
    shares = _shares(sold, cluster[train.values], n_clients)
    shops = [
        torch.full_like(split.train.values, _PUBLIC).masked_scatter(private[split.train.rows], sold)
    ]
    for part in (split.valid, split.test):
        drawn = _drawn(part, shares[cluster[part.values]], key.fold("later"))
        shops.append(drawn.where(private[part.rows], _PUBLIC))
    return _opened(interactions, split, shops, n_clients)


def item_clusters(rows: Ragged, n_items: int, n_clusters: int, key: Key) -> Tensor:
    """Cluster items by k-means over their vectors in a truncated SVD of the train matrix.

    Vectors are of length 1, so that what items are bought together counts and not how often. An
    item without a row has a cluster drawn.

    Args:
        rows: train items of users.
        n_items: number of items.
        n_clusters: fewer are made where fewer items can be told apart.
        key: of the starts and the draw.

    Returns:
        ``(n_items,)`` int64 clusters, from 0 without a gap.
    """
    from sklearn.preprocessing import normalize  # heavy

    by_item = Ragged.from_pairs(rows.values, rows.rows, n_items)
    known = by_item.lengths > 0
    vectors = user_vectors(by_item, known, len(rows), _DIM, key.fold("item vectors"))
    count = min(n_clusters, int(known.sum()))
    label = k_means(normalize(vectors[known.numpy()]), count, key.fold("item clusters"))
    label = torch.unique(label, return_inverse=True)[1]
    drawn = key.fold("unknown items").integers(int(label.max()) + 1, torch.arange(n_items))
    return drawn.masked_scatter(known, label)


def _divided(train: Ragged, cluster: Tensor, n_clients: int, skew: float, key: Key) -> Tensor:
    """Shop of every train interaction, ``(n,)`` int64."""
    labels = cluster[train.values]
    least = max(int(_LEAST * labels.numel() / n_clients), 1)
    try:
        parts = dirichlet(labels, n_clients, skew, key.fold("shops"), min_size=least)
    except UserError as error:
        raise UserError(
            f"{labels.numel()} train interactions cannot be divided among {n_clients} shops with "
            f"'data.skew' {skew:g} so that each has {least}: raise it, or lower 'data.clients'"
        ) from error
    return torch.empty_like(labels).index_copy_(0, parts.values, parts.rows)


def _shares(shop: Tensor, cluster: Tensor, n_clients: int) -> Tensor:
    """Share of every shop in each cluster's train interactions, ``(G, K)`` float64."""
    counts = torch.zeros(int(cluster.max()) + 1, n_clients, dtype=torch.float64)
    counts.index_put_((cluster, shop), torch.ones(len(shop)).double(), accumulate=True)
    return counts / counts.sum(1, keepdim=True)


def _drawn(part: Ragged, shares: Tensor, key: Key) -> Tensor:
    """Draw a shop for every interaction, by its own ``(n, K)`` shares, user and item."""
    draw = unit(key.fold(part.rows).bits(part.values), torch.float64)
    found = torch.searchsorted(shares.cumsum(1), draw[:, None], right=True)[:, 0]
    return found.clamp(max=shares.shape[1] - 1)  # the last edge may be 1 less rounding


def _opened(
    interactions: Interactions, split: GlobalSplit, shops: list[Tensor], n_clients: int
) -> Accounts:
    """Number the accounts by user and shop, and the shops by size."""
    parts = (split.train, split.valid, split.test)
    user = torch.cat([part.rows for part in parts])
    code = user * (n_clients + 1) + torch.cat(shops) - _PUBLIC
    found, account = code.unique(return_inverse=True)
    owner = found // (n_clients + 1)
    numbers = account.split([part.values.numel() for part in parts])
    rows = GlobalSplit(
        *(
            Ragged.from_pairs(number, part.values, len(found))
            for number, part in zip(numbers, parts, strict=True)
        )
    )
    shop = _numbered(found % (n_clients + 1) + _PUBLIC, rows, n_clients)
    # Every row of the interactions is of a user and an item that are together in one part.
    n_items = interactions.n_items
    pair, order = (user * n_items + torch.cat([part.values for part in parts])).sort()
    place = torch.searchsorted(pair, interactions.user * n_items + interactions.item)
    names = interactions.user_names
    opened = replace(
        interactions,
        user=account[order[place]],
        user_names=[
            names[user] if at < 0 else f"{names[user]}@{at}"
            for user, at in zip(owner.tolist(), shop.tolist(), strict=True)
        ],
        user_features=interactions.user_features and interactions.user_features.take(owner),
        besides=_besides(interactions, owner),
    )
    return Accounts(opened, rows, shop)


def _besides(interactions: Interactions, owner: Tensor) -> Tensor | None:
    """What filters left out, for every account of the user: no shop can be told for it."""
    if interactions.besides is None:
        return None
    user, item = interactions.besides.unbind(1)
    items = Ragged.from_pairs(user, item, interactions.n_users).take(owner)
    return torch.stack([items.rows, items.values], 1)


def _numbered(shop: Tensor, split: GlobalSplit, n_clients: int) -> Tensor:
    """Number the shops by their accounts before the test, the largest first."""
    known = (shop >= 0) & (split.before_test().lengths > 0)
    number = torch.empty(n_clients, dtype=torch.int64)
    number[shop[known]] = by_size(shop[known], n_clients)
    return torch.where(shop < 0, shop, number[shop])
