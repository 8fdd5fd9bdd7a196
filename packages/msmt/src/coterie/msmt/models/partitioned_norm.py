"""Batch normalisation whose statistics are each scenario's own (STAR)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PartitionedNorm(nn.Module):
    """Partitioned normalisation (Sheng et al., CIKM 2021).

    z' = (γ γ_p)(z - μ_p)/√(σ²_p + ε) + (β + β_p) for a sample of scenario p; μ_p and σ²_p are in
    training those of the batch's samples of p, in evaluation their moving averages.

    Of a scenario with a single sample in a batch there is no variance: that sample is normalised
    by the moving averages, in training too, and does not change them.

    Args:
        n: length of what is normalised.
        n_scenarios: S.
        momentum: weight of a batch in the moving averages.
        epsilon: ε.

    Attributes:
        running_mean: ``(S, n)``, moving averages of μ_p.
        running_var: ``(S, n)``, those of the unbiased variance, as in ``nn.BatchNorm1d``.
        num_batches_tracked: ``(S,)`` int64, how many batches went into those of each scenario.

    Example:
        >>> norm = PartitionedNorm(1, 2)
        >>> z, scenario = torch.tensor([[1.0], [3.0], [50.0]]), torch.tensor([0, 0, 1])
        >>> norm(z, scenario).detach().round()
        tensor([[-1.],
                [ 1.],
                [50.]])
        >>> norm.num_batches_tracked
        tensor([1, 0])
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, n: int, n_scenarios: int, momentum: float = 0.1, epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.scale, self.shift = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))
        self.own_scale = nn.Parameter(torch.ones(n_scenarios, n))
        self.own_shift = nn.Parameter(torch.zeros(n_scenarios, n))
        self.register_buffer("running_mean", torch.zeros(n_scenarios, n))
        self.register_buffer("running_var", torch.ones(n_scenarios, n))
        self.register_buffer("num_batches_tracked", torch.zeros(n_scenarios, dtype=torch.int64))

    def forward(self, z: Tensor, scenario: Tensor) -> Tensor:
        """Normalise ``(B, n)``, samples of the scenarios ``(B,)`` int64."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = self._of_batch(z, scenario)
        z = (z - mean[scenario]) * (var + self.epsilon).rsqrt()[scenario]
        return z * (self.scale * self.own_scale)[scenario] + (self.shift + self.own_shift)[scenario]

    def _of_batch(self, z: Tensor, scenario: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance ``(S, n)`` of each scenario's samples; moves the averages there."""
        belongs = nn.functional.one_hot(scenario, len(self.running_mean)).to(z.dtype)
        count = belongs.sum(0).unsqueeze(1)
        mean = (belongs.T @ z) / count.clamp(min=1)
        var = (belongs.T @ (z - mean[scenario]).square()) / count.clamp(min=1)
        enough = count > 1
        found = (
            torch.where(enough, mean, self.running_mean),
            torch.where(enough, var, self.running_var),
        )
        with torch.no_grad():
            share = self.momentum * enough.to(z.dtype)
            unbiased = var * count / (count - 1).clamp(min=1)
            self.running_mean.add_(share * (mean - self.running_mean))
            self.running_var.add_(share * (unbiased - self.running_var))
            self.num_batches_tracked.add_(enough.squeeze(1))
        return found
