"""Minimise a loss of weights p >= 0, sum p = 1, with a certificate where the loss is convex.

Every point bounds the minimum of a convex loss from below by its Frank-Wolfe gap
max_i <grad, p - e_i> (Jaggi, ICML 2013); so the answer found is certified, however it was found.
Where the loss is not convex the same search gives the best found and no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_MEMORY = 10
_DECREASE = 1e-4
_LONGEST = 1e8
_HALVINGS = 40


class Objective(Protocol):
    """A loss of weights on the simplex.

    Attributes:
        n: number of weights.
        convex: whether the loss is; a bound is given only then.
    """

    n: int
    convex: bool

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss at ``p``, ``(n,)``, and its gradient, ``(n,)``."""
        ...


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
    objective: Objective,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    max_steps: int = 2000,
) -> Minimum:
    """Minimise over the simplex by spectral projected gradients (Birgin, Martínez, Raydan, 2000).

    Args:
        objective: the loss.
        start: ``(n,)`` where to begin; default uniform.
        tolerance: Frank-Wolfe gap at which to stop.
        max_steps: after which the best so far is given, with the bound that it has.

    Raises:
        ValueError: the loss is not finite at the start.

    Example:
        >>> class Distance:  # ½ ‖p - c‖², whose minimum is the projection of c
        ...     n, convex = 3, True
        ...     def slope(self, p):
        ...         away = p - torch.tensor([2.0, 0.5, 1.5])
        ...         return float(away @ away) / 2, away
        >>> found = minimise(Distance())
        >>> found.p.tolist(), found.gap < 1e-4
        ([0.75, 0.0, 0.25], True)
    """
    uniform = torch.full((objective.n,), 1.0 / objective.n, dtype=torch.float64)
    p = uniform if start is None else onto_simplex(start.double())
    value, slope = objective.slope(p)
    if not math.isfinite(value):
        raise ValueError(f"the loss of the first weights is {value:g}, which is not finite")
    best, bound, past, length, step = (value, p), -math.inf, [value], 1.0, 0
    for step in range(max_steps + 1):
        gap = frank_wolfe_gap(p, slope)
        bound = max(bound, value - gap)
        if gap <= tolerance or (objective.convex and best[0] - bound <= tolerance):
            break
        moved = _search(objective, p, slope, onto_simplex(p - length * slope) - p, max(past))
        if step == max_steps or moved is None:
            break
        new, value, new_slope = moved
        length = _spectral(new - p, new_slope - slope)
        p, slope = new, new_slope
        past = [*past[1 - _MEMORY :], value]
        best = min(best, (value, p), key=lambda pair: pair[0])
    return Minimum(best[1], best[0], bound if objective.convex else None, step)


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
    objective: Objective, p: Tensor, slope: Tensor, towards: Tensor, ceiling: float
) -> tuple[Tensor, float, Tensor] | None:
    """Shorten the step until the loss is below the worst of the last ones."""
    fall = float(slope @ towards)
    share = 1.0
    for _ in range(_HALVINGS):
        new = p + share * towards
        value, new_slope = objective.slope(new)
        if value <= ceiling + _DECREASE * share * fall:
            return new, value, new_slope
        share /= 2
    return None


def _spectral(moved: Tensor, turned: Tensor) -> float:
    curvature = float(moved @ turned)
    return min(_LONGEST, float(moved @ moved) / curvature) if curvature > 0.0 else _LONGEST
