"""A graph attention network on the star graphs of C users, and its gradients in closed form.

User u's graph has u in the middle, around it the items it has and, once known, neighbour users.
With W and the two halves of w (one head; Veličković et al., ICLR 2018):

    h_u = W e_u + Σ_k a_k W e_k,  a = softmax_k LeakyReLU(<w_self, W e_u> + <w_other, W e_k>),
    s_ui = <h_u, W e_i>.

Without anything around it, h_u = W e_u. All users share W, w and the item table when a round
begins, so that one product scores all items, and a user's gradient of the item table is a sum of
three outer products: no user needs tables of vectors of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

SLOPE = 0.2  # of LeakyReLU

Loss = Literal["bce", "squared"]


@dataclass(frozen=True)
class Network:
    """The public parameters.

    Attributes:
        items: ``(n, d)`` e_i.
        weight: ``(d, d)`` W.
        attention: ``(2, d)`` w_self and w_other.
    """

    items: Tensor
    weight: Tensor
    attention: Tensor


@dataclass(frozen=True)
class Stars:
    """The graphs.

    Attributes:
        user: ``(C, d)`` e_u.
        around: ``(C, n)`` bool, the items around each user.
        neighbours: ``(C, N, d)`` vectors of neighbours.
        known: ``(C, N)`` bool, which of them there are.
    """

    user: Tensor
    around: Tensor
    neighbours: Tensor
    known: Tensor


@dataclass(frozen=True)
class Gradients:
    """Gradients of each user's own loss.

    The gradient of row i of the item table is ``factor[u, :, i] @ basis[u]``.

    Attributes:
        loss: ``(C,)``.
        user: ``(C, d)``.
        factor: ``(C, 3, n)``; 0 for items that are neither around the user nor among the samples.
        basis: ``(C, 3, d)``.
        weight: ``(C, d, d)``.
        attention: ``(C, 2, d)``.
    """

    loss: Tensor
    user: Tensor
    factor: Tensor
    basis: Tensor
    weight: Tensor
    attention: Tensor


@dataclass(frozen=True)
class _Pass:
    """What the forward pass keeps: products with W, attention and its slopes."""

    centre: Tensor  # (C, d) W e_u
    items: Tensor  # (n, d) W e_i
    neighbours: Tensor  # (C, N, d) W e_v
    share: Tensor  # (C, n + N) a
    slope: Tensor  # (C, n + N) derivative of LeakyReLU
    user: Tensor  # (C, d) h_u


def represent(network: Network, stars: Stars) -> Tensor:
    """Give h_u, ``(C, d)``."""
    return _forward(network, stars).user


def item_vectors(network: Network) -> Tensor:
    """Give W e_i, ``(n, d)``: scores are ``h @ item_vectors.T``."""
    return network.items @ network.weight.T


def gradients(
    network: Network, stars: Stars, label: Tensor, weight: Tensor, kind: Loss
) -> Gradients:
    """Differentiate Σ_i w_ui · loss(s_ui, y_ui) of each user.

    Args:
        network: the same for all.
        stars: of C users.
        label: ``(C, n)`` y.
        weight: ``(C, n)`` w, 0 for items that are no samples.
        kind: "bce", or "squared" (s - y)².
    """
    there = _forward(network, stars)
    score = there.user @ there.items.T
    loss, slope = _loss(score, label, kind)
    d_score = weight * slope
    d_user = d_score @ there.items
    # Attention: a is a softmax, its logits go through LeakyReLU.
    n = label.shape[1]
    towards = torch.cat(
        [d_user @ there.items.T, (there.neighbours * d_user[:, None]).sum(2)], dim=1
    )
    mean = (there.share * towards).sum(1, keepdim=True)
    d_logit = there.share * (towards - mean) * there.slope
    items, others = d_logit[:, :n], d_logit[:, n:]
    share_items, share_others = there.share[:, :n], there.share[:, n:]
    w_self, w_other = network.attention
    total = d_logit.sum(1, keepdim=True)
    d_centre = d_user + total * w_self
    factor = torch.stack([d_score, share_items, items], dim=1)
    rows = torch.stack([there.user, d_user, w_other.expand_as(d_user)], dim=1)
    inputs = factor @ network.items
    inputs[:, 1] += (share_others[:, :, None] * stars.neighbours).sum(1)
    inputs[:, 2] += (others[:, :, None] * stars.neighbours).sum(1)
    d_weight = rows.mT @ inputs + d_centre[:, :, None] * stars.user[:, None, :]
    d_other = items @ there.items + (others[:, :, None] * there.neighbours).sum(1)
    return Gradients(
        loss=(weight * loss).sum(1),
        user=d_centre @ network.weight,
        factor=factor,
        basis=rows @ network.weight,
        weight=d_weight,
        attention=torch.stack([total * there.centre, d_other], dim=1),
    )


def _forward(network: Network, stars: Stars) -> _Pass:
    weight, (w_self, w_other) = network.weight, network.attention
    centre, items = stars.user @ weight.T, network.items @ weight.T
    neighbours = stars.neighbours @ weight.T
    of_items = (items @ w_other).expand(stars.around.shape)
    raw = torch.cat([of_items, neighbours @ w_other], dim=1) + (centre @ w_self)[:, None]
    present = torch.cat([stars.around, stars.known], dim=1)
    logit = F.leaky_relu(raw, SLOPE).masked_fill(~present, -torch.inf)
    # Nobody around gives no attention instead of 0 / 0.
    share = torch.softmax(logit, dim=1).masked_fill(~present, 0.0)
    n = items.shape[0]
    user = centre + share[:, :n] @ items + (share[:, n:, None] * neighbours).sum(1)
    slope = torch.full_like(raw, SLOPE).masked_fill_(raw > 0, 1.0)
    return _Pass(centre, items, neighbours, share, slope, user)


def _loss(score: Tensor, label: Tensor, kind: Loss) -> tuple[Tensor, Tensor]:
    """Loss and its derivative for each logit."""
    if kind == "squared":
        return (score - label).square(), 2.0 * (score - label)
    loss = F.binary_cross_entropy_with_logits(score, label, reduction="none")
    return loss, torch.sigmoid(score) - label
