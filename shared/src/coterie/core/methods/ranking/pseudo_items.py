"""What hides a user's item gradients: made-up rows among them, and clipped, noisy values."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.core.tensors.rows import TouchedRows


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
