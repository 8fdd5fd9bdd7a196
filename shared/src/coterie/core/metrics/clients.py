"""Summaries of one value a client: how good on average, how bad for the worst, how unequal."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def worst_decile(values: Tensor, higher_is_better: bool = True) -> float:
    """Mean of the worst tenth of the clients with a value, rounded up; NaN where there are none.

    Args:
        values: ``(C,)``; NaN marks a client without a value, which is not counted.
        higher_is_better: False for losses; then the worst decile has the highest values.

    Example:
        >>> worst_decile(torch.tensor([0.1, 0.3, float("nan"), 0.8]))  # doctest: +ELLIPSIS
        0.1000...
    """
    known = values.detach().double()
    known = known[~torch.isnan(known)]
    if not known.numel():
        return math.nan
    n_worst = math.ceil(known.numel() / 10)
    return known.topk(n_worst, largest=not higher_is_better, sorted=False).values.mean().item()


def mean_of_known(values: Tensor) -> float:
    """Mean over the clients that have a value, every client counts once; NaN where none has one.

    Args:
        values: ``(C,)``; NaN marks a client without a value.

    Example:
        >>> round(mean_of_known(torch.tensor([0.5, float("nan"), 1.0])), 4)
        0.75
    """
    return float(values.nanmean())


def imbalance(values: Tensor) -> float:
    """Measure inequality between clients: (best - worst) / worst (PPLR, its Table 3).

    Args:
        values: ``(C,)`` non-negative, higher is better; NaN marks a client without a value.

    Returns:
        0 for equal clients, inf where only the worst is 0; NaN where all are 0, of whom nothing is
        known, and without clients.

    Raises:
        ValueError: a value is negative.

    Example:
        >>> round(imbalance(torch.tensor([0.0338, 0.0144], dtype=torch.float64)), 2)
        1.35
    """
    known = values.detach().double()
    known = known[~torch.isnan(known)]
    if not known.numel():
        return math.nan
    worst, best = known.min().item(), known.max().item()
    if worst < 0:
        raise ValueError(f"imbalance needs non-negative values, got {worst}")
    if worst == 0:
        return math.inf if best else math.nan
    return (best - worst) / worst
