"""Batch normalisation of many networks' units, and of their input, folded into its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from coterie.msmt.models.fast.fields import Fields, Plan


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


# Batch normalisation of a network's input, folded into its tables (Eq. 2).


class InputNorm(Norm):
    """Normalisation of x = concat(E_1[c_1], …, W numbers + b), ``(D,)``.

    Each feature is scaled and shifted, and so can be the embeddings before they are looked up. What
    mean and variance a feature of an embedding has in a batch follows from how often each id is in
    it.

    Args:
        plan: of the fields.
    """

    def __init__(self, plan: Plan) -> None:
        self.blocks = [*plan.small, *plan.linear, *plan.large]
        super().__init__(len(self.blocks) * plan.width)
        self.plan = plan

    def forward(self, fields: Fields) -> Fields:
        """Normalise, by the batch in training and else by the running statistics."""
        return self._by_batch(fields) if self.training else self._by_running(fields)

    def _by_batch(self, fields: Fields) -> Fields:
        batch = fields.one_hot.shape[1]
        if batch < 2:
            raise ValueError(
                f"batch normalisation needs 2 samples or more in training, not {batch}"
            )
        gains, shifts = (self._cut(each) for each in (self.weight, self.bias))
        owner = self._owner(fields)
        table, *of_ids = _normal_table(fields, owner, gains[0], shifts[0], self.eps)
        numbers, linear, *of_numbers = _normal_numbers(fields, gains[1], self.eps)
        features, *of_features = _normal_features(
            fields.features, gains[2].flatten(), shifts[2].flatten(), self.eps
        )
        mean, variance = zip(of_ids, of_numbers, of_features, strict=True)
        self.track(self._joined(mean), self._joined(variance), batch)
        return replace(
            fields,
            table=table,
            numbers=numbers,
            linear=linear,
            constant=shifts[1],
            features=features,
        )

    def _by_running(self, fields: Fields) -> Fields:
        slope, offset = self.affine()
        slopes, offsets = self._cut(slope), self._cut(offset)
        owner = self._owner(fields)
        return replace(
            fields,
            table=fields.table * slopes[0][owner] + offsets[0][owner],
            linear=fields.linear * slopes[1],
            constant=fields.constant * slopes[1] + offsets[1],
            features=fields.features * slopes[2].reshape(-1, 1) + offsets[2].reshape(-1, 1),
        )

    def _owner(self, fields: Fields) -> Tensor:
        return _numbers(self.plan.owner, fields.table)

    def _cut(self, values: Tensor) -> tuple[Tensor, ...]:
        """Cut ``(D,)`` into what belongs to ids, numbers, and other features, each ``(n, d)``."""
        plan = self.plan
        blocks = values.view(-1, plan.width).index_select(0, _numbers(self.blocks, values))
        return blocks.split([len(plan.small), len(plan.linear), len(plan.large)])

    def _joined(self, values: tuple[Tensor, ...]) -> Tensor:
        """Undo `_cut`."""
        blocks = torch.cat([value.reshape(-1, self.plan.width) for value in values])
        return torch.empty_like(blocks).index_copy_(0, _numbers(self.blocks, blocks), blocks)


def _numbers(values: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _normal_table(
    fields: Fields, owner: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise embeddings ``(C, d)``, of n fields; gives means and variances ``(n, d)`` too."""
    share = fields.one_hot.mean(1)
    mine = owner == torch.arange(len(gain), device=owner.device)[:, None]
    shares = mine * share
    mean = shares @ fields.table
    centred = fields.table - mean[owner]
    variance = shares @ centred.square()
    slope = gain * torch.rsqrt(variance + eps)
    return centred * slope[owner] + shift[owner], mean.detach(), variance.detach()


def _normal_numbers(
    fields: Fields, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centre numbers ``(P, B)`` and scale their map; gives means and variances ``(n, d)`` too."""
    if not len(fields.constant):
        return fields.numbers, fields.linear, fields.constant, fields.constant
    middle = fields.numbers.mean(1, keepdim=True)
    centred = fields.numbers - middle
    variance = (fields.linear.T @ centred).square().mean(1)
    slope = gain * torch.rsqrt(variance + eps)
    with torch.no_grad():
        mean = middle.T @ fields.linear + fields.constant
    return centred, fields.linear * slope, mean, variance.detach()


def _normal_features(
    features: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise rows ``(n, B)``; gives means and variances ``(n,)`` too."""
    n, batch = features.shape
    if not n:
        return features, gain.detach(), gain.detach()
    # A group a row; contiguous rows make it fast.
    normal, mean, rstd = torch.native_group_norm(
        features.contiguous()[None], gain, shift, 1, n, batch, n, eps
    )
    return normal[0], mean[0].detach(), variance_of(rstd[0], eps)
