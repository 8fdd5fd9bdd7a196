"""What the paper does to uploads where the code needs the outcome alone (Eq. 8, whitening)."""

from torch import Tensor

from coterie.msmt.aggregation.fedbn import Affine, normalised_average, statistics

EPSILON = 1e-5


def federated_batch_norm(stack: Tensor, affine: Affine, eps: float = EPSILON) -> Tensor:
    """Normalise the M uploaded parameters ``(M, d_in, ...)`` over themselves (Eq. 8)."""
    found = statistics(stack)
    gamma = normalised_average(Affine(affine.gamma, affine.gamma), stack[0])
    beta = normalised_average(affine, stack[0])
    return gamma * ((stack - found.mean) / (found.variance + eps).sqrt()) + beta


def whitened(increments: Tensor, variance: Tensor, eps: float = EPSILON) -> Tensor:
    """Divide increments ``(M, ...)`` by the spread of the parameters: Δ / sqrt(σ_g² + ε_g)."""
    return increments / (variance + eps).sqrt()


def unwhitened(direction: Tensor, variance: Tensor, eps: float = EPSILON) -> Tensor:
    """Undo `whitened`: U · sqrt(σ_g² + ε_g)."""
    return direction * (variance + eps).sqrt()
