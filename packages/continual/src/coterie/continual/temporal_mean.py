"""Item-wise temporal mean, the server side of F³CRec (section 4.3)."""

from __future__ import annotations

import torch
from torch import Tensor


def knowledge_shift(old: Tensor, new: Tensor) -> Tensor:
    """φ_i = ||Q_old,i - Q_i||² / sqrt(d) (Eq. 8), ``(n_old,)``; both tables are ``(n_old, d)``."""
    return (old - new).square().sum(1) / old.shape[1] ** 0.5


def item_wise_weight(shift: Tensor, beta: float) -> Tensor:
    """γ_i = β / (1 + φ_i) (Eq. 9), ``(n_old,)``."""
    return beta / (1 + shift)


def temporal_mean(table: Tensor, old: Tensor, weight: Tensor | float) -> Tensor:
    """Blend old items with the previous block's rows; new items stay as aggregated (Eq. 13).

    Args:
        table: ``(n, d)`` pre-aggregated table Q_g'.
        old: ``(n_old, d)`` table of the previous block, n_old <= n.
        weight: γ, ``(n_old,)`` or one number for all (F³CRec w/o i.t.m).

    Example:
        >>> temporal_mean(torch.ones(2, 1), torch.zeros(1, 1), 0.25).flatten().tolist()
        [0.75, 1.0]
    """
    gamma = torch.as_tensor(weight, dtype=table.dtype).reshape(-1, 1)
    blended = (1 - gamma) * table[: old.shape[0]] + gamma * old
    return torch.cat([blended, table[old.shape[0] :]])
