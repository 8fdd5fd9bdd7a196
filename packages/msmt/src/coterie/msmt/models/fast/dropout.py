"""Dropout from 16 random bits a unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LANES = 1 << 16
_PER_WORD = 4  # lanes of 16 bits in an int64


@dataclass(frozen=True)
class Dropout:
    """Which share of the units is dropped, to a 65536th, and how the others are scaled.

    A unit has 16 random bits, a whole number from -32768, and is kept if that is above a bound.
    What is kept is scaled by exactly one over the share of numbers above the bound, so that the
    mean stays what it was.

    Args:
        rate: share that is dropped, in [0, 1); rounded to a 65536th, 65535 of them at most.

    Example:
        >>> Dropout(0.25).scale, Dropout(0.0).scale
        (1.3333333333333333, 1.0)
    """

    rate: float

    @property
    def dropped(self) -> int:
        """How many of the 65536 values of 16 bits drop a unit."""
        return min(round(self.rate * _LANES), _LANES - 1)

    @property
    def scale(self) -> float:
        """What kept units are multiplied by."""
        return _LANES / (_LANES - self.dropped)

    @property
    def bound(self) -> float:
        """The bits of units that are kept are above it, as signed numbers."""
        return self.dropped - _LANES / 2 - 0.5

    @staticmethod
    def bits(like: Tensor) -> Tensor:
        """Draw bits from torch's global generator, int16 in the shape of ``like``."""
        words = like.new_empty(-(-like.numel() // _PER_WORD), dtype=torch.int64)
        # `random_` without bounds leaves the sign out, which is a bit of every fourth lane.
        lanes = words.random_(-(1 << 63), None).view(torch.int16)
        return lanes[: like.numel()].view(like.shape)
