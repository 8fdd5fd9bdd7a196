"""Codes in {-1, +1}^f: packing, Hamming similarity, exact coordinate steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.float32)


def pack(codes: Tensor) -> Tensor:
    """Pack codes ``(n, f)`` of -1 and +1 into bits: ``(n, f / 8)`` uint8.

    Example:
        >>> pack(torch.tensor([[1, -1, -1, -1, -1, -1, 1, 1]])).tolist()
        [[131]]
    """
    return torch.from_numpy(np.packbits((codes > 0).numpy(), axis=-1))


def unpack(packed: Tensor) -> Tensor:
    """Undo `pack`: ``(n, f)`` float32."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1)).float().mul_(2.0).sub_(1.0)


def hamming_similarity(users: Tensor, items: Tensor) -> Tensor:
    """Compare packed codes: 1 - Hamming distance / f, which is 1/2 + <b, d> / 2f.

    Args:
        users: ``(C, f / 8)`` uint8.
        items: ``(n, f / 8)`` uint8.

    Returns:
        ``(C, n)`` float32 in [0, 1].
    """
    distance = np.zeros((users.shape[0], items.shape[0]), dtype=np.float32)
    for user, item in zip(users.numpy().T, items.numpy().T, strict=True):
        distance += _ONES[user[:, None] ^ item[None, :]]
    return 1.0 - torch.from_numpy(distance) / (8 * users.shape[1])


def descend_users(codes: Tensor, items: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Sweep once over the bits of the users' codes; return Σ-ready residuals.

    Bit k becomes sign(Σ_i w_i (x_i - <b, d_i>) d_ik + Σ_i w_i b_k), which is the better of the two
    for Σ_i w_i (x_i - <b, d_i>)², the other bits as they are; on a tie it stays.

    Args:
        codes: ``(C, f)`` of -1 and +1; changed in place.
        items: ``(n, f)``.
        target: ``(C, n)`` x.
        weight: ``(C, n)`` w.

    Returns:
        ``(C, n)`` w (x - <b, d>) after the sweep. Exact in float32 while they are integers below
        2^24 in sum.
    """
    residual = weight * (target - codes @ items.T)
    inertia = weight.sum(1)
    for k, column in enumerate(items.T):
        vote = residual @ column + inertia * codes[:, k]
        flipped = (vote * codes[:, k] < 0).nonzero().flatten()
        if flipped.numel():
            codes[flipped, k] *= -1.0
            change = 2.0 * codes[flipped, k]
            residual[flipped] -= weight[flipped] * change[:, None] * column
    return residual


def best_column(vote: Tensor, column: Tensor, balance: float) -> Tensor:
    """Minimise -2 Σ_i v_i d_i + c (Σ_i d_i)² over a column of item bits, exactly.

    For any number of positive bits those of the highest votes are best, so that trying all numbers
    finds the minimum.

    Args:
        vote: ``(n,)`` v.
        column: ``(n,)`` the bits so far, which stay on a tie of votes.
        balance: c; 0 leaves sign(v).

    Example:
        >>> best_column(torch.tensor([3.0, 2.0, 1.0, 0.5]), torch.ones(4), 9.0).tolist()
        [1.0, 1.0, -1.0, -1.0]
    """
    if not balance:
        return torch.where(vote == 0, column, vote.sign().to(column.dtype))
    order = torch.argsort(column, descending=True, stable=True)
    order = order[torch.argsort(vote[order], descending=True, stable=True)]
    n = vote.numel()
    positive = torch.arange(n + 1, dtype=torch.float64)
    won = torch.cat([positive[:1], vote[order].double().cumsum(0)])
    cost = -4.0 * won + balance * (2.0 * positive - n).square()
    found = torch.full_like(column, -1.0)
    found[order[: int(cost.argmin())]] = 1.0
    return found
