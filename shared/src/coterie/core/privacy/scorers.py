"""What a server can compute from one upload to guess the user's positive items.

Each scorer maps one client's change of the item table to a score per item, high = positive. None
uses anything that the server does not have: the change, and the public table it was computed from.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Scorer = Callable[[Tensor, Tensor], Tensor]


def touched(change: Tensor, public: Tensor) -> Tensor:
    """Score 1 for a row that changed (F³CRec, §5.6: each of them is positive with n⁺/(n⁺ + n⁻)).

    Args:
        change: ``(C, n, d)`` changes of the item rows.
        public: ``(n, d)`` the table they were computed from.

    Returns:
        ``(C, n)``.
    """
    return (change != 0).any(2).to(change.dtype)


def change_norm(change: Tensor, public: Tensor) -> Tensor:
    """Score by the length of the row's change: positives, being few, are moved further.

    Shapes as in `touched`.
    """
    return change.norm(dim=2)


def direction(change: Tensor, public: Tensor) -> Tensor:
    """Score by the projection on the one direction in which a client's rows move.

    A bilinear score has the gradient (σ - y) v for every item, with the client's vector v (or the
    weights of its head): the change has rank one for each local step, positives move along v,
    sampled negatives against it. The first right singular vector of the change is v up to its sign.

    The sign follows from two facts that every server knows. Negatives are sampled several to a
    positive, so in early rounds the projections sum to less than 0. Later the scores are trained,
    so most items' public rows score less than 0 with v. The two means, each over its root mean
    square, are added.

    Shapes as in `touched`.
    """
    gram = change.mT @ change
    vector = torch.linalg.eigh(gram).eigenvectors[:, :, -1]  # (C, d)
    projection = (change @ vector[:, :, None]).squeeze(2)
    moved = (change != 0).any(2)
    prior = vector @ public.T  # (C, n)
    evidence = _standardised(projection, moved) + _standardised(prior, torch.ones_like(moved))
    sign = torch.where(evidence > 0, -1.0, 1.0).to(change.dtype)
    return projection * sign[:, None]


SCORERS: dict[str, Scorer] = {
    "touched": touched,
    "norm": change_norm,
    "direction": direction,
}


def _standardised(values: Tensor, where: Tensor) -> Tensor:
    """Mean over root mean square of the chosen values of each client, ``(C,)``, in [-1, 1]."""
    count = where.sum(1).clamp_min(1)
    mean = (values * where).sum(1) / count
    square = (values.square() * where).sum(1) / count
    return mean / square.sqrt().clamp_min(torch.finfo(values.dtype).tiny)
