"""Codes in {-1, +1}^f: packing, Hamming similarity, exact coordinate steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.tensors.ragged import Ragged

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.float32)


def pack(codes: Tensor) -> Tensor:
    """Pack codes ``(n, f)`` of -1 and +1 into bits: ``(n, f / 8)`` uint8.

    Example:
        >>> pack(torch.tensor([[1, -1, -1, -1, -1, -1, 1, 1]])).tolist()
        [[131]]
    """
    return torch.as_tensor(np.packbits((codes > 0).cpu().numpy(), axis=-1))


def unpack(packed: Tensor) -> Tensor:
    """Undo `pack`: ``(n, f)`` float32."""
    return torch.as_tensor(np.unpackbits(packed.cpu().numpy(), axis=-1)).float().mul_(2.0).sub_(1.0)


def hamming_similarity(users: Tensor, items: Tensor) -> Tensor:
    """Compare packed codes: 1 - Hamming distance / f, which is 1/2 + <b, d> / 2f.

    Args:
        users: ``(C, f / 8)`` uint8.
        items: ``(n, f / 8)`` uint8.

    Returns:
        ``(C, n)`` float32 in [0, 1].
    """
    distance = np.zeros((users.shape[0], items.shape[0]), dtype=np.float32)
    for user, item in zip(users.cpu().numpy().T, items.cpu().numpy().T, strict=True):
        distance += _ONES[user[:, None] ^ item[None, :]]
    return 1.0 - torch.as_tensor(distance) / (8 * users.shape[1])


def descend_users(codes: Tensor, items: Tensor, samples: Ragged, target: Tensor) -> Tensor:
    """Sweep once over the bits of the users' codes; return what is left to explain.

    Bit k becomes sign(Σ_i (x_i - <b, d_i>) d_ik + m b_k) over the user's m samples, which is the
    better of the two for Σ_i (x_i - <b, d_i>)², the other bits as they are; on a tie it stays.

    Args:
        codes: ``(C, f)`` of -1 and +1; changed in place.
        items: ``(n, f)``.
        samples: C rows of items, S in all.
        target: ``(S,)`` x, integers, so that sums are exact.

    Returns:
        ``(S,)`` x - <b, d> after the sweep.
    """
    columns = items.T[:, samples.values].contiguous()
    residual = target - (codes.T[:, samples.rows] * columns).sum(0)
    count = samples.lengths
    for k, column in enumerate(columns):
        bit = codes[:, k]
        vote = _row_sums(residual * column, samples) + count * bit
        flipped = vote * bit < 0
        if bool(flipped.any()):
            bit[flipped] *= -1.0
            change = torch.where(flipped, 2.0 * bit, 0.0)
            residual -= change[samples.rows] * column
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


def _row_sums(values: Tensor, rows: Ragged) -> Tensor:
    """Sums of integers over each row, ``(C,)`` float64: exact by differences of running sums."""
    running = torch.nn.functional.pad(values.cumsum(0, dtype=torch.float64), (1, 0))
    return running[rows.offsets].diff()
