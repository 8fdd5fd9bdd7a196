"""Attentive message passing: how much each client's model takes from every other's (FedAMP)."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.local_training.fit import Params


def flat(models: Params) -> Tensor:
    """Put the parameters of N models end to end, ``(N, d)``."""
    return torch.cat([value.flatten(1) for value in models.values()], 1)


def squared_distances(vectors: Tensor) -> Tensor:
    """‖v_i - v_j‖² of vectors ``(N, d)``, ``(N, N)``; 0 on the diagonal."""
    # Distances from a common centre are small where the models are alike: less is cancelled.
    centred = vectors - vectors.mean(0)
    norms = centred.square().sum(1)
    squares = norms[:, None] + norms - 2 * centred @ centred.T
    return squares.clamp(min=0).fill_diagonal_(0)


def message_weights(
    squares: Tensor, sigma: float, alpha: float, silent: Tensor
) -> tuple[Tensor, float]:
    """Weights ξ of the messages between N clients (FedAMP, Eq. 5), and the α_k that they use.

    ξ_ij = α_k A'(‖w_i - w_j‖²) for j ≠ i with A'(x) = exp(-x/σ)/σ, and ξ_ii is the rest to 1.

    Args:
        squares: ``(N, N)`` squared distances of the models.
        sigma: σ.
        alpha: largest α_k; a smaller one is taken where otherwise some ξ_ii, which the paper wants
            to be no less than 0, would fall below α_k A'(0), the weight of an equal model.
        silent: ``(N,)`` bool, clients whose models nobody else hears.

    Example:
        >>> squares = torch.zeros(3, 3)
        >>> weights, alpha = message_weights(squares, 1.0, 0.25, torch.zeros(3).bool())
        >>> weights[0].tolist(), alpha
        ([0.5, 0.25, 0.25], 0.25)
    """
    slope = torch.exp(-squares / sigma) / sigma
    slope = slope.masked_fill(silent, 0.0).fill_diagonal_(0.0)
    others = slope.sum(1)
    used = min(alpha, 1 / (float(others.max()) + 1 / sigma))
    weights = used * slope
    return weights.diagonal_scatter(1 - used * others), used


__all__ = ["flat", "message_weights", "squared_distances"]
