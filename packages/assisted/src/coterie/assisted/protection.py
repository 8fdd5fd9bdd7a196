"""What an organisation does to its residuals before they leave it, as MTAL's public code has it.

Neither way has a guarantee of differential privacy: what is clipped depends on the data. The public
code takes the quantiles over the residuals of all organisations, which nobody holds; here each
takes those of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.assisted.settings.protect import ProtectSettings
from coterie.core.privacy.draws import laplace
from coterie.core.tensors.keys import Key

TAILS = 0.025, 0.975
"""Quantiles that residuals are clipped to."""


def protected(residuals: Tensor, how: ProtectSettings, key: Key) -> Tensor:
    """Protect the residuals of a round, ``(n,)``.

    Args:
        residuals: ``(n,)`` of all training cells.
        how: what is done.
        key: the organisation's own, another one in each round.

    Example:
        >>> clean = torch.tensor([1.0, -2.0, 0.5])
        >>> protected(clean, ProtectSettings(), Key.from_seed(0)) is clean
        True
    """
    if how.residuals == "none" or not residuals.numel():
        return residuals
    low, high = ends(residuals)
    if how.residuals == "dp":
        noise = laplace(Key(key.state.reshape(1)), residuals.numel(), residuals.dtype)[0]
        return residuals.clamp(low, high) + noise * ((high - low) / how.alpha)
    return _answers(residuals, low, high, how.thresholds, key)


def ends(values: Tensor) -> tuple[float, float]:
    """The quantiles `TAILS` of values, ``(n,)``, by linear interpolation.

    Example:
        >>> [round(end, 3) for end in ends(torch.arange(101.0))]
        [2.5, 97.5]
    """
    ordered = values.double().sort().values  # torch.quantile takes 2^24 values at most
    places = [tail * (len(ordered) - 1) for tail in TAILS]
    found = []
    for place in places:
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        found.append(float(torch.lerp(ordered[below], ordered[above], place - below)))
    return found[0], found[1]


def _answers(values: Tensor, low: float, high: float, thresholds: int, key: Key) -> Tensor:
    """Interval privacy (Ding and Ding, 2021): mean of an unbiased answer to each threshold t.

    An answer says on which side of t a value is: 2t - low above, 2t - high below. Its mean over t,
    uniform between the two ends, is the value, or the end that is nearest.
    """
    total = torch.zeros_like(values)
    for number in range(thresholds):
        t = low + (high - low) * key.fold(number).uniform(values.numel(), dtype=values.dtype)
        total += torch.where(values < t, 2 * t - high, 2 * t - low)
    return total / thresholds
