"""Who is public, and which users make up a client."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.data.sequences import emptied
from coterie.llm.data.split import GlobalSplit

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
