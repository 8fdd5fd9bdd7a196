"""The dynamic balance strategy (section 3.1): pure functions of a ``(K, d)`` matrix of adapters.

Row c of the matrix is r_c, everything that client c trains, flattened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.errors import UserError

Similarity = Literal["shifted", "cosine"]
Exponent = Literal["paper", "released"]

_COLUMNS = 1 << 20  # of a matrix of adapters that are widened at once


def inner_products(rows: Tensor) -> Tensor:
    """Inner product of every pair of adapters, ``(K, d)`` -> ``(K, K)`` float64.

    Adapters of one start are nearly parallel, so products are summed in float64, part by part.
    Those of the parts of a split model add up.

    Example:
        >>> inner_products(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[5.0, 11.0], [11.0, 25.0]]
    """
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for part in rows.split(_COLUMNS, dim=1):
        wide = part.double()
        gram += wide @ wide.T
    return gram


def cosine_similarity(gram: Tensor) -> Tensor:
    """Cosine of every pair of adapters from inner products, ``(K, K)`` (Eq. 3); 0 with a zero one.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
        >>> cosine_similarity(inner_products(rows))[0].tolist()
        [1.0, 1.0, 0.0]
    """
    length = gram.diagonal().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    return gram / length / length[:, None]


def attention(gram: Tensor, similarity: Similarity = "shifted") -> Tensor:
    """Attention s of every client to every other, ``(K, K)``, 1 on the diagonal (Eq. 2, 3).

    Args:
        gram: ``(K, K)`` `inner_products` of adapters, or of their changes since they were last
            mixed.
        similarity: "cosine" as printed; "shifted" is (cosine + 1) / 2, in [0, 1], as in the public
            code.
    """
    cosine = cosine_similarity(gram)
    weights = cosine if similarity == "cosine" else (cosine + 1.0) / 2.0
    return weights.fill_diagonal_(1.0)


def softened_losses(losses: Tensor, tau: float) -> Tensor:
    """Difficulty p of every client: softmax of the local losses L_c / τ, ``(K,)`` (in Eq. 4)."""
    return torch.softmax(losses.double() / tau, dim=0)


def warm_up(
    difficulty: Tensor, round: int, alpha: float, beta: float, exponent: Exponent = "paper"
) -> Tensor:
    """Warm-up coefficient w_c = tanh(α / p_c^((t + 1) / β)), ``(K,)`` (Eq. 4).

    Args:
        difficulty: ``(K,)`` p, from `softened_losses`.
        round: t, from 0.
        alpha: α > 0, speed-related; higher is faster.
        beta: β > 0, time-related; lower is faster.
        exponent: "released" is t + 1/β, as the public code computes, with which the warm-up is
            over after one round.

    Example:
        >>> p = torch.tensor([0.2], dtype=torch.float64)
        >>> [round(float(warm_up(p, t, alpha=0.7, beta=5.0)), 3) for t in range(4)]
        [0.747, 0.87, 0.951, 0.988]
    """
    power = (round + 1) / beta if exponent == "paper" else round + 1 / beta
    # p^power underflows to 0 for clients without difficulty: α / 0 = inf, tanh(inf) = 1.
    return torch.tanh(alpha / difficulty**power)


def dynamic_weights(similarity: Tensor, warmth: Tensor) -> Tensor:
    """Weights d̂ = w_c s_cc' for others, 1 for oneself, ``(K, K)``, rows not normalised (Eq. 5).

    The warmth w, ``(K,)``, is that of the receiving client: it warms up to its peers.
    """
    weights = warmth[:, None].to(similarity.dtype) * similarity
    return weights.fill_diagonal_(1.0)


def row_normalised(weights: Tensor, sizes: Tensor | None = None) -> Tensor:
    """Divide every row by its sum, ``(K, K)`` (Eq. 1).

    Args:
        weights: ``(K, K)``.
        sizes: ``(K,)`` numbers of examples |D_c'|; if given, column c' is weighted by its own.

    Raises:
        UserError: a row sums to nothing, as may happen with plain cosines, which can be negative.
    """
    weights = weights if sizes is None else weights * sizes.to(weights.dtype)
    total = weights.sum(1, keepdim=True)
    if bool((total <= 1e-6 * weights.abs().sum(1, keepdim=True)).any()):
        raise UserError(
            "negative cosines cancel a client's own weight, so nothing is left to average: "
            "use --mixing.similarity shifted"
        )
    return weights / total


def mix(rows: Tensor, weights: Tensor) -> Tensor:
    """New adapters R_c <- Σ_c' d̂_cc' R_c' of all clients, ``(K, d)``, from one snapshot (Eq. 1)."""
    return weights.to(rows.dtype) @ rows


@dataclass(frozen=True)
class Mixing:
    """Who taught whom in a round.

    Attributes:
        ids: ``(A,)`` int64, the clients that trained.
        receivers: ``(B,)`` int64, those who get what was mixed: the A clients each its own row, or
            more or fewer the first row, where all rows are one mean.
        weights: ``(A, A)`` float64.
    """

    ids: Tensor
    receivers: Tensor
    weights: Tensor


def received(rows: Tensor, trained: Tensor, how: Mixing) -> Tensor:
    """Give the adapters of all clients after the mixed ones have been sent, ``(K, d)``.

    Args:
        rows: ``(K, d)`` before.
        trained: ``(A, d)`` what training made of those of ``how.ids``.
        how: who taught whom.
    """
    mixed, receivers = mix(trained, how.weights), how.receivers
    if len(receivers) != len(mixed):
        mixed = mixed[:1].expand(len(receivers), -1)
    return mixed if len(receivers) == len(rows) else rows.index_copy(0, receivers, mixed)
