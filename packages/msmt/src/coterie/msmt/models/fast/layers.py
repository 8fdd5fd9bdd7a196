"""Layers of many networks side by side, as modules, and the gated sum of experts; feature-major."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from coterie.msmt.models.fast.fields import Design
from coterie.msmt.models.fast.hidden import Dropout, hidden
from coterie.msmt.models.fast.norm import Norm, variance_of


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


# Layers of many networks side by side, as modules; feature-major.


def uniform(*shape: int, n_in: int) -> nn.Parameter:
    """Draw a parameter as ``nn.Linear`` with ``n_in`` inputs does."""
    bound = 1 / math.sqrt(n_in)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class Hidden(nn.Module):
    """What follows the weights of a hidden layer: bias, batch normalisation, ReLU, dropout.

    Args:
        networks: shape of the networks that are run side by side, as ``(T, N)``.
        biases: shape of the biases, as ``networks`` or its last axes, whose networks share them.
        n_in: inputs of a unit, which the first biases depend on.
        n_out: units.
        dropout: share of the units that is dropped in training.
        norm: whether there is batch normalisation.
    """

    def __init__(
        self,
        networks: Sequence[int],
        biases: Sequence[int],
        n_in: int,
        n_out: int,
        dropout: float,
        norm: bool,
    ) -> None:
        super().__init__()
        self.networks = tuple(networks)
        self.bias = uniform(*biases, n_out, n_in=n_in)
        self.norm = Norm(*networks, n_out) if norm else None
        self.dropout = nn.Dropout(dropout)  # never called: whoever looks at the module sees a draw

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, fixed: int = 0) -> Tensor:
        """Run the layer of G networks.

        Args:
            x: ``(G, n_in, B)``, or ``(n_in, B)`` where all networks see the same.
            weight: ``(M, n_out, n_in)``; network g takes ``g % M``.
            bias: added to the module's own, ``(M, n_out)``.
            fixed: first rows of ``(n_in, B)`` that need no gradient.

        Returns:
            ``(G, n_out, B)``.

        Raises:
            ValueError: in training, there is normalisation and one sample.
        """
        added = self.bias if bias is None else self.bias + bias
        added = added.expand(*self.networks, -1).flatten(0, -2)
        if not self.training:
            return self._evaluated(x, weight, added)
        dropout = Dropout(self.dropout.p)
        if self.norm is None:
            return hidden(x, weight, None, added, dropout, fixed=fixed)[0]
        gain, shift = (each.flatten(0, -2) for each in (self.norm.weight, self.norm.bias))
        out, mean, rstd = hidden(x, weight, gain, shift, dropout, self.norm.eps, fixed)
        self.norm.track(mean + added.detach(), variance_of(rstd, self.norm.eps), x.shape[-1])
        return out

    def _evaluated(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        seen = x if x.dim() == 2 else x.unflatten(0, (-1, len(weight)))
        z = (weight @ seen).reshape(len(bias), -1, x.shape[-1])
        if self.norm is None:
            return torch.relu(z + bias[..., None])
        slope, offset = (each.flatten(0, -2) for each in self.norm.affine())
        return torch.relu(z * slope[..., None] + (offset + bias * slope)[..., None])


class HiddenLayer(Hidden):
    """A hidden layer with its weights ``(M, n_out, n_in)``, shared like the biases of `Hidden`."""

    def __init__(
        self,
        networks: Sequence[int],
        weights: Sequence[int],
        n_in: int,
        n_out: int,
        dropout: float,
        norm: bool,
    ) -> None:
        super().__init__(networks, weights, n_in, n_out, dropout, norm)
        self.weight = uniform(*weights, n_out, n_in, n_in=n_in)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer: ``(G, n_in, B)`` to ``(G, n_out, B)``."""
        return self.run(x, self.weight.flatten(0, -3))


class Towers(nn.Module):
    """The towers of T tasks, each a multi-layer perceptron with one output.

    Args:
        n_tasks: T.
        n_in: length of what a tower takes.
        widths: units of the hidden layers.
        dropout: share of the units that is dropped in training.
        norm: whether there is batch normalisation.
    """

    def __init__(
        self, n_tasks: int, n_in: int, widths: Sequence[int], dropout: float, norm: bool
    ) -> None:
        super().__init__()
        tasks, ends = (n_tasks,), (n_in, *widths)
        layers = [HiddenLayer(tasks, tasks, *pair, dropout, norm) for pair in pairwise(ends)]
        self.hidden = nn.Sequential(*layers)
        self.weight = uniform(n_tasks, 1, ends[-1], n_in=ends[-1])
        self.bias = uniform(n_tasks, 1, n_in=ends[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits ``(B, T)`` of ``(T, n_in, B)``."""
        return torch.baddbmm(self.bias[..., None], self.weight, self.hidden(x))[:, 0].T


class Gates(nn.Module):
    """Gates of T tasks over N experts, that look at a network's input.

    Args:
        n_in: D, length of the input.
        n_tasks: T.
        n_experts: N.
    """

    def __init__(self, n_in: int, n_tasks: int, n_experts: int) -> None:
        super().__init__()
        self.weight = uniform(n_in, n_tasks * n_experts, n_in=n_in)
        self.bias = uniform(n_tasks, n_experts, n_in=n_in)

    def forward(self, design: Design) -> Tensor:
        """Give the shares ``(T, N, B)`` of the experts, which sum to 1."""
        weight, bias = design.maps(self.weight[None])
        scores = (weight[0] @ design.m).unflatten(0, self.bias.shape)
        added = self.bias if bias is None else self.bias + bias.view_as(self.bias)
        return (scores + added[..., None]).softmax(1)
