"""The best weights of a mixture of models on one set of samples, over the simplex.

minimise CE(sum_i p_i w_i; D) over p >= 0, sum p = 1. Where scores are linear in the parameters
(softmax regression) this is convex, and every point bounds the minimum from below by its
Frank-Wolfe gap max_i <grad, p - e_i> (Jaggi, ICML 2013); so the answer found is certified, however
it was found. For nets the same search gives the best found and no bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.errors import UserError

_MEMORY = 10
_DECREASE = 1e-4
_LONGEST = 1e8
_HALVINGS = 40


class Mixture(Protocol):
    """A loss of weights on the simplex."""

    n: int
    convex: bool

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss at ``p``, ``(n,)``, and its gradient, ``(n,)``."""
        ...


class SoftmaxMixture:
    """Cross-entropy of mixed softmax regressions; convex.

    Scores are linear in the parameters, so a gradient costs two products of ``(n, d)`` with
    ``(d, K)``, and no tensor of every client's scores is made.

    Args:
        weight: ``(N, K, d)`` of the clients' layers, K classes.
        bias: ``(N, K)``.
        x: ``(n, d)`` samples of the follower.
        y: ``(n,)`` int64 classes.
        dtype: to compute in; a bound needs the default, an answer that is good enough takes half
            the time in float32.

    Raises:
        ValueError: parameters of a client are not finite; leave that client out.
    """

    convex = True

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        x: Tensor,
        y: Tensor,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        stacked = torch.cat([weight, bias[..., None]], -1).to(dtype)
        if not stacked.isfinite().all():
            raise ValueError("a client's parameters are not finite: mix the other clients only")
        self.n = stacked.shape[0]
        self._shape = stacked.shape[1:]
        self._flat = stacked.reshape(self.n, -1)
        self._x = torch.cat([x, torch.ones_like(x[:, :1])], -1).to(dtype)
        self._y = y[:, None]

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at ``p``, ``(N,)`` float64."""
        scores = self._x @ (p.to(self._flat) @ self._flat).reshape(self._shape).T
        logs = scores.log_softmax(-1)
        right = logs.gather(1, self._y)
        error = logs.exp_().scatter_(1, self._y, right.expm1())
        slope = self._flat @ (error.T @ self._x).reshape(-1) / len(self._x)
        return -float(right.mean()), slope.double().cpu()


class _LossOnly(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Give the loss, as `functional_call` calls nothing else."""
        loss: Tensor = self.module.loss(batch)  # type: ignore[operator]
        return loss


class ModelMixture:
    """Loss of mixed networks by autograd; not convex in general.

    Args:
        module: has ``loss(batch)``, the mean over the samples.
        stacked: every parameter of the clients, ``(N, ...)``.
        batches: the follower's samples, in parts that fit into memory.
    """

    convex = False

    def __init__(
        self,
        module: nn.Module,
        stacked: Mapping[str, Tensor],
        batches: Sequence[dict[str, Tensor]],
    ) -> None:
        self._loss = _LossOnly(module)
        self._stacked = {f"module.{name}": value.detach() for name, value in stacked.items()}
        self._batches = batches
        self.n = next(iter(stacked.values())).shape[0]

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at ``p``, ``(N,)`` float64."""
        mixed = {
            name: torch.tensordot(p.to(value), value, 1).requires_grad_()
            for name, value in self._stacked.items()
        }
        n_samples = sum(len(batch["y"]) for batch in self._batches)
        total, slope = 0.0, torch.zeros(self.n, dtype=torch.float64)
        for batch in self._batches:
            loss = functional_call(self._loss, mixed, (batch,)) * (len(batch["y"]) / n_samples)
            slopes = torch.autograd.grad(loss, list(mixed.values()), materialize_grads=True)
            total += float(loss.detach())
            for value, part in zip(self._stacked.values(), slopes, strict=True):
                slope += (value.flatten(1) @ part.flatten()).double().cpu()
        return total, slope


@dataclass(frozen=True)
class Minimum:
    """What `minimise` found.

    Attributes:
        p: ``(n,)`` float64 on the simplex.
        value: loss there.
        bound: no p has a lower loss (up to rounding); None where the loss is not convex.
        steps: made.
    """

    p: Tensor
    value: float
    bound: float | None
    steps: int

    @property
    def gap(self) -> float:
        """How far the value may be above the true minimum; NaN without a bound."""
        return float("nan") if self.bound is None else max(0.0, self.value - self.bound)


def minimise(
    mixture: Mixture, start: Tensor | None = None, tolerance: float = 1e-4, max_steps: int = 2000
) -> Minimum:
    """Minimise over the simplex by spectral projected gradients (Birgin, Martínez, Raydan, 2000).

    Args:
        mixture: the loss.
        start: ``(n,)`` where to begin; default uniform.
        tolerance: Frank-Wolfe gap at which to stop.
        max_steps: after which the best so far is given, with the bound that it has.

    Raises:
        UserError: the loss is not finite at the start.

    Example:
        >>> weight = torch.tensor([[[1.0], [0.0]], [[-1.0], [0.0]]])
        >>> x, y = torch.ones(4, 1), torch.tensor([0, 0, 1, 1])
        >>> found = minimise(SoftmaxMixture(weight, torch.zeros(2, 2), x, y))
        >>> found.p.tolist(), found.gap < 1e-4
        ([0.5, 0.5], True)
    """
    uniform = torch.full((mixture.n,), 1.0 / mixture.n, dtype=torch.float64)
    p = uniform if start is None else onto_simplex(start.double())
    value, slope = mixture.slope(p)
    if not math.isfinite(value):
        raise UserError(
            "the mean of the clients' models has no finite loss: lower 'train.lr' or set "
            "'train.clip'"
        )
    best, bound, past, length, step = (value, p), -math.inf, [value], 1.0, 0
    for step in range(max_steps + 1):
        gap = frank_wolfe_gap(p, slope)
        bound = max(bound, value - gap)
        if gap <= tolerance or (mixture.convex and best[0] - bound <= tolerance):
            break
        moved = _search(mixture, p, slope, onto_simplex(p - length * slope) - p, max(past))
        if step == max_steps or moved is None:
            break
        new, value, new_slope = moved
        length = _spectral(new - p, new_slope - slope)
        p, slope = new, new_slope
        past = [*past[1 - _MEMORY :], value]
        best = min(best, (value, p), key=lambda pair: pair[0])
    return Minimum(best[1], best[0], bound if mixture.convex else None, step)


def frank_wolfe_gap(p: Tensor, slope: Tensor) -> float:
    """Give max_i <slope, p - e_i>: a convex loss at ``p`` is at most this above its minimum."""
    return float(slope @ p - slope.min())


def onto_simplex(v: Tensor) -> Tensor:
    """Project ``(n,)`` onto the simplex (Held, Wolfe, Crowder, 1974).

    Example:
        >>> onto_simplex(torch.tensor([2.0, 0.5, 1.5])).tolist()
        [0.75, 0.0, 0.25]
    """
    ordered = v.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1.0) / torch.arange(1, len(v) + 1, dtype=v.dtype)
    return (v - excess[int((ordered > excess).sum()) - 1]).clamp_min(0.0)


def _search(
    mixture: Mixture, p: Tensor, slope: Tensor, towards: Tensor, ceiling: float
) -> tuple[Tensor, float, Tensor] | None:
    """Shorten the step until the loss is below the worst of the last ones."""
    fall = float(slope @ towards)
    share = 1.0
    for _ in range(_HALVINGS):
        new = p + share * towards
        value, new_slope = mixture.slope(new)
        if value <= ceiling + _DECREASE * share * fall:
            return new, value, new_slope
        share /= 2
    return None


def _spectral(moved: Tensor, turned: Tensor) -> float:
    curvature = float(moved @ turned)
    return min(_LONGEST, float(moved @ moved) / curvature) if curvature > 0.0 else _LONGEST
