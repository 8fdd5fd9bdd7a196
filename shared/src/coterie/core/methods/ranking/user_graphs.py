"""Graphs of users: who has items in common, a network on their stars, what hides its gradients."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.protocol.messages import Down, Reveals, Up, carries, leaves
from coterie.core.protocol.uploads import Number
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import TouchedRows
from coterie.core.tensors.stacked import Ragged

_CHUNK = 1024


@dataclass(frozen=True)
class Announcement(Up):
    """What a user tells the third party; the server that trains does not read it."""

    tokens: Ragged = leaves(  # C rows of int64
        "a token of each item, ascending: equal for equal items, meaningless without the clients' "
        "secret",
        reveals=Reveals.OVERLAP,
    )
    vector: Tensor = leaves(  # (C, d)
        "the user's vector, for its neighbours",
        reveals=Reveals.PARAMETERS,
        depends_on={"params"},
        expected=Number(axes=1),
    )


@dataclass(frozen=True)
class Neighbours(Down):
    """Other users with items in common, anonymous; stacked over C clients."""

    vectors: Tensor = carries("their vectors, 0 where there is none")  # (C, N, d)
    known: Tensor = carries("where there is one")  # (C, N) bool


def item_tokens(secret: CommonSecret, items: Ragged, n_items: int) -> Ragged:
    """Replace items by keyed tokens: 63 bits of HMAC-SHA256, in ascending order for each user.

    Tokens must be equal for equal items, so encryption with fresh randomness would not do, and
    keyed, or else whoever sees them could try all item numbers.

    Args:
        secret: shared by the clients, unknown to both servers.
        items: C rows of item numbers.
        n_items: number of items.
    """
    key = secret.derive("tokens")
    used = torch.unique(items.values)
    table = torch.zeros(n_items, dtype=torch.int64)
    table[used] = torch.tensor([_token(key, item) for item in used.tolist()], dtype=torch.int64)
    tokens = table[items.values]
    order = torch.argsort(tokens, stable=True)
    order = order[torch.argsort(items.rows[order], stable=True)]
    return Ragged(tokens[order], items.offsets)


class ThirdParty:
    """Connects users by equal tokens; gets no item number and no user number.

    Args:
        limit: N, most neighbours of a user: those with the most tokens in common, of equals those
            who announced themselves first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def match(self, announced: Announcement) -> Neighbours:
        """Give each user the vectors of others with whom it shares a token."""
        tokens, vectors = announced.tokens, announced.vector
        n_users = len(tokens)
        found = torch.zeros(n_users, self.limit, dtype=torch.int64)
        known = torch.zeros(n_users, self.limit, dtype=torch.bool)
        width = min(self.limit, n_users)
        for start, shared in _shared_tokens(tokens) if width else ():
            best = torch.argsort(shared, dim=1, descending=True, stable=True)[:, :width]
            rows = slice(start, start + shared.shape[0])
            found[rows, :width] = best
            known[rows, :width] = shared.gather(1, best) > 0
        return Neighbours(vectors[found] * known[:, :, None], known)


def _token(key: bytes, item: int) -> int:
    digest = hmac.digest(key, item.to_bytes(8, "little"), "sha256")
    return int.from_bytes(digest[:8], "little") >> 1


def _shared_tokens(tokens: Ragged) -> Iterator[tuple[int, Tensor]]:
    """Numbers of tokens in common, ``(K, C)`` for K users at a time; 0 with oneself."""
    column = torch.unique(tokens.values, return_inverse=True)[1]
    ones = np.ones(column.numel(), dtype=np.float32)
    n_users = len(tokens)
    shape = (n_users, int(column.max()) + 1 if column.numel() else 1)
    matrix = sparse.csr_matrix((ones, column.cpu().numpy(), tokens.offsets.cpu().numpy()), shape)
    for start in range(0, n_users, _CHUNK):
        shared = torch.as_tensor((matrix[start : start + _CHUNK] @ matrix.T).toarray())
        rows = torch.arange(shared.shape[0])
        shared[rows, rows + start] = 0.0
        yield start, shared


# A graph attention network on the star graphs of C users, and its gradients in closed form.
#
# User u's graph has u in the middle, around it the items it has and, once known, neighbour users.
# With W and the two halves of w (one head; Veličković et al., ICLR 2018):
#
#     h_u = W e_u + Σ_k a_k W e_k,  a = softmax_k LeakyReLU(<w_self, W e_u> + <w_other, W e_k>),
#     s_ui = <h_u, W e_i>.
#
# Without anything around it, h_u = W e_u. All users share W, w and the item table when a round
# begins, so that one product scores all items, and a user's gradient of the item table is a sum of
# three outer products: no user needs tables of vectors of its own.

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


# What hides a user's item gradients: made-up rows among them, and clipped, noisy values.


def choose_pseudo_items(key: Key, touched: Tensor, count: int) -> Tensor:
    """Draw items without a gradient, without replacement.

    Args:
        key: the users' keys, ``state`` of shape ``(C,)``.
        touched: ``(C, n)`` bool, items with a gradient.
        count: M, for each user; all there are, if fewer.

    Returns:
        ``(C, n)`` bool.
    """
    chosen = torch.zeros_like(touched)
    count = min(count, touched.shape[1])
    if count:
        draw = key.uniform(touched.shape[1]).masked_fill(touched, 2.0)
        value, place = torch.topk(draw, count, largest=False)
        chosen.scatter_(1, place, value < 1.0)
    return chosen & (touched.any(1, keepdim=True))


def pseudo_factors(key: Key, factor: Tensor, touched: Tensor, pseudo: Tensor) -> Tensor:
    """Fill rows of pseudo items from a Gaussian with the real rows' mean and covariance.

    Rows are ``factor[u, :, i] @ basis[u]``, linear in the factors, so that factors from a Gaussian
    with their mean and covariance give rows from one with theirs.

    Args:
        key: the users' keys, ``state`` of shape ``(C,)``.
        factor: ``(C, r, n)``.
        touched: ``(C, n)`` bool, the real rows.
        pseudo: ``(C, n)`` bool, the rows to fill.
    """
    real = touched[:, None].to(factor.dtype)
    count = real.sum(2, keepdim=True).clamp_min(1.0)
    mean = (factor * real).sum(2, keepdim=True) / count
    centred = (factor - mean) * real
    # The symmetric root exists for a singular covariance too, and is unique: eigenvectors are not.
    values, vectors = torch.linalg.eigh(centred @ centred.mT / count)
    root = (vectors * values.clamp_min(0.0).sqrt()[:, None]) @ vectors.mT
    normal = key.normal(*factor.shape[1:], dtype=factor.dtype)
    return torch.where(pseudo[:, None], mean + root @ normal, factor)


def to_rows(factor: Tensor, basis: Tensor, present: Tensor) -> TouchedRows:
    """Multiply the present rows out: ``factor[u, :, i] @ basis[u]``.

    Args:
        factor: ``(C, r, n)``.
        basis: ``(C, r, d)``.
        present: ``(C, n)`` bool.
    """
    user, item = present.nonzero(as_tuple=True)
    values = factor.new_zeros(user.numel(), basis.shape[2])
    for f, b in zip(factor.unbind(1), basis.unbind(1), strict=True):
        values += f[user, item, None] * b[user]
    index = Ragged.from_lengths(item, present.sum(1))
    return TouchedRows(index, values, present.shape[1])


def privatise(
    key: Key, values: Tensor, owner: Tensor, number: Tensor, clip: float | None, noise: float
) -> Tensor:
    """Clip every coordinate to [-δ, δ], and add Laplace noise of scale λ (variance 2λ²).

    A coordinate changes by at most 2δ when a user's data do, so that each alone is 2δ/λ-locally
    differentially private, and p of them are p·2δ/λ.

    Args:
        key: the users' keys, ``state`` of shape ``(C,)``.
        values: ``(m, d)``.
        owner: ``(m,)`` int64, whose row each is, in 0..C-1.
        number: ``(m,)`` int64, a number of each row, distinct for each owner.
        clip: δ; None for no clipping.
        noise: λ.
    """
    if clip is not None:
        values = values.clamp(-clip, clip)
    if not noise:
        return values
    draws = _laplace(key.take(owner), number, values.shape[1])
    return values + noise * draws.to(values.dtype)


def _laplace(key: Key, number: Tensor, width: int) -> Tensor:
    """Laplace numbers of scale 1, ``(m, width)`` float32: each half of a 64-bit hash is one."""
    hashes = (width + 1) // 2
    counter = number[:, None] * hashes + torch.arange(hashes)
    bits = Key(key.state[:, None]).bits(counter).flatten()
    halves = bits.view(torch.int32).reshape(-1, 2 * hashes)[:, :width]
    # The lower 31 bits give the magnitude, exponentially distributed, the highest one the sign.
    magnitude = halves.bitwise_and(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).log_()
    return magnitude.copysign_(halves)
