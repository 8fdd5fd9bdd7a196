"""Maps from an agent's raw action, in [-1, 1], onto what the action means.

Each map covers its whole range: the ends and everything between them (`Simplex`: all weights whose
ratios stay within a bound). An agent stores the raw action, never what a map makes of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Logarithmic:
    """Equal steps of the raw action are equal factors from ``low`` to ``high``.

    For learning rates: [0.001, 0.1] on a line would give nine tenths of the actions to its upper
    decade.

    Raises:
        ValueError: not 0 < ``low`` < ``high``, or ``high`` is not finite.

    Example:
        >>> [round(x, 6) for x in Logarithmic(0.01, 1.0)(torch.tensor([-1.0, 0.0, 1.0])).tolist()]
        [0.01, 0.1, 1.0]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(
                f"a logarithmic range runs from above 0 to a higher, finite end, "
                f"not from {self.low:g} to {self.high:g}"
            )

    def __call__(self, raw: Tensor) -> Tensor:
        """Map raw actions of any shape."""
        low, high = math.log(self.low), math.log(self.high)
        value = low + (raw + 1) / 2 * (high - low)
        return value.clamp(low, high).exp().clamp(self.low, self.high)


@dataclass(frozen=True)
class Integers:
    """The integers ``low`` to ``high``, both included, each a cell of the same width.

    Raises:
        ValueError: ``low`` is above ``high``.

    Example:
        >>> Integers(1, 3)(torch.tensor([-1.0, -0.4, -0.3, 0.3, 0.4, 1.0])).tolist()
        [1, 1, 2, 2, 3, 3]
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"no integer from {self.low} to {self.high}")

    def __call__(self, raw: Tensor) -> Tensor:
        """Map raw actions of any shape to int64."""
        cells = self.high - self.low + 1
        cell = ((raw + 1) / 2 * cells).floor().long()
        return self.low + cell.clamp(0, cells - 1)


@dataclass(frozen=True)
class Simplex:
    """Weights that sum to 1: softmax of the raw action times a scale.

    Equal raw actions give 1/width each. One at 1 and the others at -1 give ``peak`` to the one.
    Reached is every weighting whose largest ratio is at most ``exp(2 scale)``.

    Attributes:
        width: number of weights.
        peak: largest weight that can be reached, above 1/width and below 1.

    Raises:
        ValueError: ``width`` or ``peak`` is out of its range.

    Example:
        >>> raw = torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, -1.0]])
        >>> Simplex(3, peak=0.8)(raw).round(decimals=2)
        tensor([[0.3300, 0.3300, 0.3300],
                [0.8000, 0.1000, 0.1000]])
    """

    width: int
    peak: float = 0.99

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"there is no weighting of {self.width}")
        if self.width > 1 and not 1 / self.width < self.peak < 1:
            raise ValueError(f"peak must be above 1/{self.width} and below 1, not {self.peak:g}")

    @cached_property
    def scale(self) -> float:
        """Factor of the raw action, half the logarithm of the largest ratio."""
        if self.width == 1:
            return 1.0
        return math.log((self.width - 1) * self.peak / (1 - self.peak)) / 2

    def __call__(self, raw: Tensor) -> Tensor:
        """Map raw actions ``(..., width)``."""
        return torch.softmax(self.scale * raw, dim=-1)
