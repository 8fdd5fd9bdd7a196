"""Batch normalisation of many networks' units: parameters and running statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Norm(nn.Module):
    """What `torch.nn.BatchNorm1d` keeps, for units of any shape; others do the arithmetic.

    Args:
        shape: of the units, as (networks, units).
        eps: added to variances.
        momentum: share of a batch's statistics in the new running ones.

    Attributes:
        weight: γ, ones at first.
        bias: β, zeros at first.
        running_mean: of the batches seen, for evaluation.
        running_var: the same of unbiased variances.
        num_batches_tracked: how many batches were seen.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, *shape: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    @torch.no_grad()
    def track(self, mean: Tensor, variance: Tensor, batch: int) -> None:
        """Take a batch's statistics into the running ones, in place.

        Args:
            mean: as many as units.
            variance: biased, as many as units.
            batch: B, number of samples.
        """
        unbiased = variance * (batch / (batch - 1))
        self.running_mean.lerp_(mean.reshape(self.running_mean.shape), self.momentum)
        self.running_var.lerp_(unbiased.reshape(self.running_var.shape), self.momentum)
        self.num_batches_tracked.add_(1)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Give slope and offset that normalise a value by the running statistics."""
        slope = self.weight * torch.rsqrt(self.running_var + self.eps)
        return slope, self.bias - self.running_mean * slope


def variance_of(rstd: Tensor, eps: float) -> Tensor:
    """Undo 1/sqrt(variance + eps); rounding makes no negative ones."""
    return (rstd.square().reciprocal() - eps).clamp_min(0)
