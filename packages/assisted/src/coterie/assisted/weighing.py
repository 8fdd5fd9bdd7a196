"""A reader who weighs what noise can have done against how frequent ratings are.

Settings are public, so the law of the noise is known. What of it depends on the data, the quantiles
that dp and ip clip to, is given to the reader: a few hundred residuals tell them nearly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.assisted.protection import ends
from coterie.assisted.settings import ProtectSettings, Settings, covers


@dataclass(frozen=True)
class Law:
    """How a residual leaves an organisation: clipped, with noise.

    Attributes:
        low: to which it is clipped.
        high: likewise.
        kind: of the noise; ip is the mean answer to random thresholds, nearly normal.
        scale: of the noise; of ip the number of thresholds.
    """

    low: float = -math.inf
    high: float = math.inf
    kind: Literal["none", "laplace", "gaussian", "ip"] = "none"
    scale: float = 1.0

    def likelihood(self, sent: Tensor, clean: Tensor) -> Tensor:
        """Logarithm of the likelihood of what was sent, but for a constant.

        Args:
            sent: ``(…, n)``.
            clean: residuals that it may be made of, ``(G, …, n)``.

        Returns:
            ``(G, …, n)``.

        Example:
            >>> law = Law(-1.0, 1.0, "laplace", 0.5)
            >>> law.likelihood(torch.zeros(1), torch.tensor([[0.0], [0.5], [7.0]])).tolist()
            [[-0.0], [-1.0], [-2.0]]
        """
        middle = clean.clamp(self.low, self.high)
        off = (sent - middle).abs()
        match self.kind:
            case "laplace":
                return -off / self.scale
            case "gaussian":
                return -0.5 * (off / self.scale).square()
            case "ip":
                variance = self._variance(middle)
                return -0.5 * (off.square() / variance + variance.log())
            case _:
                return -off / 1e-6  # but for rounding it is what was sent

    def _variance(self, middle: Tensor) -> Tensor:
        """Of one answer v is the mean, on either side of the threshold uniform around it."""
        cubes = (self.high - middle) ** 3 + (middle - self.low) ** 3
        return cubes / (3.0 * max(self.high - self.low, 1e-9)) / self.scale


def law_of(settings: Settings, residuals: Tensor) -> Law:
    """The law of an organisation's noise.

    Args:
        settings: how residuals are protected.
        residuals: ``(n,)`` as they are.
    """
    protect, privacy = settings.protect, settings.privacy
    if protect.residuals != "none" and len(residuals):
        return _of_the_public_code(protect, *ends(residuals))
    if not covers(privacy) or privacy.clip_by != "entry" or privacy.clip is None:
        return Law()
    noise = privacy.noise
    return Law(-privacy.clip, privacy.clip, noise, 1.0 if noise == "none" else privacy.scale)


def _of_the_public_code(protect: ProtectSettings, low: float, high: float) -> Law:
    if protect.residuals == "ip":
        return Law(low, high, "ip", float(protect.thresholds))
    if high == low:
        return Law(low, high)
    return Law(low, high, "laplace", (high - low) / protect.alpha)


def frequencies(ratings: Tensor, means: Tensor, scale: Tensor) -> Tensor:
    """How frequent each rating is where the mean of the column is about the same.

    Args:
        ratings: ``(n,)`` of all organisations.
        means: ``(n,)`` of their columns.
        scale: ``(G,)`` ascending.

    Returns:
        ``(G, n)``, each one more than counted: those of columns whose mean is nearest to the same
        half of a step of the scale.
    """
    step = float(scale.diff().min()) / 2.0 if len(scale) > 1 else 1.0
    group = ((means - scale[0]) / step).round().long().clamp_min(0)
    counts = torch.ones(len(scale), int(group.max()) + 1 if len(group) else 1, dtype=means.dtype)
    places = torch.searchsorted(scale, ratings), group
    counts.index_put_(places, torch.ones_like(means), accumulate=True)
    return counts[:, group] / counts.sum(0)[group]


def most_likely(
    sent: Tensor, of: Tensor, scale: Tensor, slope: float, law: Law, prior: Tensor
) -> Tensor:
    """The rating that is most likely after what was sent, ``(n,)``.

    Args:
        sent: ``(draws, n)``.
        of: ``(n,)`` what residuals are of.
        scale: ``(G,)``.
        slope: of the residual in the rating.
        law: of the noise.
        prior: ``(G, n)``.
    """
    clean = slope * (scale[:, None] - of)
    found = law.likelihood(sent, clean[:, None]).sum(1)
    return scale[(found + prior.log()).argmax(0)]
