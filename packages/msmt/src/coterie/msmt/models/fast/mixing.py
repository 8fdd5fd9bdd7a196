"""The gated sum of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def mixed(shares: Tensor, experts: Tensor) -> Tensor:
    """Sum what the experts give, weighted by a task's gate (Eq. 19), feature-major.

    Args:
        shares: ``(T, N, B)``, what gate t gives expert n of a sample.
        experts: ``(T, N, h, B)``, or ``(N, h, B)`` where all tasks see the same.

    Returns:
        ``(T, h, B)``.

    Example:
        >>> shares = torch.tensor([[[0.25], [0.75]]])
        >>> mixed(shares, torch.tensor([[[4.0]], [[8.0]]])).item()
        7.0
    """
    found: Tensor = _Mixed.apply(shares, experts)
    return found


class _Mixed(torch.autograd.Function):
    """See `mixed`; sums in place, without the products of all experts at once."""

    @staticmethod
    def forward(ctx: Any, shares: Tensor, experts: Tensor) -> Tensor:
        ctx.save_for_backward(shares, experts)
        found = experts.new_empty(len(shares), *experts.shape[-2:])
        for task, of_task in enumerate(shares):
            for n, share in enumerate(of_task):
                seen = experts[n] if experts.dim() == 3 else experts[task, n]
                if n:
                    found[task].addcmul_(seen, share)
                else:
                    torch.mul(seen, share, out=found[task])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        shares, experts = ctx.saved_tensors
        dshares, dexperts = torch.empty_like(shares), torch.empty_like(experts)
        product = torch.empty_like(grad[0])
        common = experts.dim() == 3
        for task, of_task in enumerate(shares):
            for n, share in enumerate(of_task):
                at = n if common else (task, n)
                torch.mul(experts[at], grad[task], out=product)
                torch.sum(product, 0, out=dshares[task, n])
                if common and task:
                    dexperts[at].addcmul_(grad[task], share)
                else:
                    torch.mul(grad[task], share, out=dexperts[at])
        return dshares, dexperts
