"""Batch normalisation of a network's input, folded into its tables (Eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.msmt.models.fast.fields import Fields, Plan
from coterie.msmt.models.fast.norm import Norm, variance_of


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
