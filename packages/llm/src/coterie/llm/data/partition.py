"""Who is public, and which users make up a client: clusters, or a genre."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.data.examples import GlobalSplit, emptied

_DIM = 16  # of the vectors that are clustered
_STARTS = 10  # of k-means, of which the best is kept
_PASSES = 7  # power iterations of the randomised SVD


def public_users(split: GlobalSplit, share: float, key: Key) -> Tensor:
    """Draw the users whose train items are public: neither clients nor evaluated.

    Returns:
        ``(m,)`` int64, ascending; a larger share adds users and keeps those of a smaller one.

    Raises:
        UserError: if the share is not in [0, 1), or leaves nobody.
    """
    if not 0 <= share < 1:
        raise UserError(f"the public share of users is {share:g}: choose 0 or more, below 1")
    users = torch.nonzero(split.train.lengths > 0).flatten()
    count = round(share * users.numel())
    if count == users.numel():
        raise UserError(f"a public share of {share:g} takes all {count} users: choose a lower one")
    draw = key.fold("public").bits(users)
    return users[torch.argsort(draw, stable=True)[:count]].sort().values


def user_vectors(rows: Ragged, fit: Tensor, n_items: int, dim: int, key: Key) -> np.ndarray:
    """Factorise the binary user-item matrix; vectors of users who are not in it are folded in.

    A user's vector is the row of the matrix times the right singular vectors, which for the users
    of the fit is U S of the truncated SVD.

    Args:
        rows: items of n users.
        fit: ``(n,)`` bool, the users whose rows make up the factorised matrix.
        n_items: number of items.
        dim: number of singular vectors; fewer where the matrix is smaller.
        key: of the start of the randomised SVD.

    Returns:
        ``(n, dim)`` float64.
    """
    # Heavy, and only where users or items are shared out.
    from sklearn.decomposition import TruncatedSVD

    ones = np.ones(rows.values.numel())
    shape = (len(rows), n_items)
    matrix = sparse.csr_matrix((ones, rows.values.numpy(), rows.offsets.numpy()), shape)
    chosen = matrix[fit.numpy()]
    svd = TruncatedSVD(min(dim, *chosen.shape), n_iter=_PASSES, random_state=key.seed())
    return np.asarray(svd.fit(chosen).transform(matrix))


def cluster_users(
    split: GlobalSplit, users: Tensor, n_clients: int, n_items: int, key: Key
) -> Tensor:
    """Share users out among clients by k-means over their matrix-factorisation vectors.

    The matrix of the users' train items is factorised. A user without any is placed by validation
    items, which for such a user are nobody's targets: validation asks users with train items only.
    Vectors are brought to length 1, so that tastes count and not activity.

    Args:
        split: of the interactions.
        users: ``(m,)`` int64, those to share out, each with a train or validation item.
        n_clients: K.
        n_items: number of items.
        key: of the SVD's and k-means' starts.

    Returns:
        ``(m,)`` int64, the client of each user; client 0 has the most users, and none is empty.

    Raises:
        UserError: if there are more clients than users, or than users that can be told apart.
    """
    if not 1 <= n_clients <= users.numel():
        raise UserError(
            f"{n_clients} clients for {users.numel()} users: choose 1 to {users.numel()} clients"
        )
    from sklearn.preprocessing import normalize

    rows, fit = known_rows(split, users)
    vectors = normalize(user_vectors(rows, fit, n_items, _DIM, key.fold("svd")))
    return by_size(k_means(vectors, n_clients, key.fold("k-means")), n_clients)


def known_rows(split: GlobalSplit, users: Tensor) -> tuple[Ragged, Tensor]:
    """Items by which users are shared out: of train, or of validation for who has none there.

    Args:
        split: of the interactions.
        users: ``(m,)`` int64.

    Returns:
        A row a user, and ``(m,)`` bool, who has train items.

    Raises:
        UserError: nobody has.
    """
    train, valid = split.train.take(users), split.valid.take(users)
    fit = train.lengths > 0
    if not bool(fit.any()):
        raise UserError("no user outside the public share has a train item: lower that share")
    return train.beside(emptied(valid, ~fit)), fit


def few_shot(sizes: Sequence[int], shots: int | None, key: Key) -> list[Tensor]:
    """Draw examples over all clients without replacement, so that each has its share by chance.

    Args:
        sizes: number of examples of each client.
        shots: how many to draw in total, at least 1; all if None or more than there are.
        key: a larger number of shots adds examples and keeps those of a smaller one.

    Returns:
        Positions of the examples that each client keeps, ascending.

    Example:
        >>> kept = few_shot([3, 0, 5], 4, Key.from_seed(0))
        >>> sum(len(part) for part in kept), len(kept[1])
        (4, 0)
    """
    lengths = torch.tensor(list(sizes), dtype=torch.int64)
    total = int(lengths.sum())
    draw = key.fold("few-shot").bits(torch.arange(total))
    chosen = torch.argsort(draw, stable=True)[:shots].sort().values
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[chosen]
    starts = lengths.cumsum(0) - lengths
    counts = torch.bincount(owner, minlength=len(lengths))
    return list(torch.split(chosen - starts[owner], counts.tolist()))


def k_means(vectors: np.ndarray, n_clusters: int, key: Key) -> Tensor:
    """Cluster vectors ``(n, dim)``: ``(n,)`` int64, of fewer clusters if fewer vectors differ."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Its case, fewer distinct vectors than clusters, is not an error here, or one of ours.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(n_clusters, n_init=_STARTS, random_state=key.seed()).fit(vectors)
    return torch.from_numpy(model.labels_.astype(np.int64))


def by_size(label: Tensor, n_clients: int) -> Tensor:
    """Number the clients anew, the largest first; those of one size by their first user.

    Args:
        label: ``(n,)`` int64, from 0, of every user.
        n_clients: K.

    Raises:
        UserError: a client has nobody.

    Example:
        >>> by_size(torch.tensor([0, 2, 2, 1, 1, 2]), 3).tolist()
        [2, 0, 0, 1, 1, 0]
    """
    sizes = torch.bincount(label, minlength=n_clients)
    found = int((sizes > 0).sum())
    if found < n_clients:
        raise UserError(
            f"{n_clients} clients, but users can be told apart in only {found} groups: "
            f"choose at most {found} clients"
        )
    first = torch.full((n_clients,), label.numel())
    first.scatter_reduce_(0, label, torch.arange(label.numel()), "amin")
    order = torch.argsort(first)
    order = order[torch.argsort(sizes[order], descending=True, stable=True)]
    number = torch.empty_like(order)
    number[order] = torch.arange(n_clients)
    return number[label]


# Clients by what their users like: the genre that stands out most in a user's history.

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
