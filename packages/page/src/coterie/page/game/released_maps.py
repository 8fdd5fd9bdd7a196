"""Action maps of PAGE's public code (ivy-h7/PAGE), for the reading that reproduces it.

They do not cover their ranges: (raw + 1)/2 is clipped to the range of the learning rate, so an
actor that starts at 0 gives the largest learning rate and number of epochs until it falls below
2·lr_max - 1. Their result, not the raw action, is what that code stores; `DDPG.remember` takes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class ReleasedTraining:
    """Learning rate and epochs of a client.

    Attributes:
        lr_min: smallest learning rate.
        lr_max: largest learning rate.
        epochs: largest number of epochs.

    Example:
        >>> client = ReleasedTraining(0.001, 0.1, 20)
        >>> [round(x, 3) for x in client(torch.tensor([[0.0, -0.9]]))[0].tolist()]
        [0.1, 10.0]
    """

    lr_min: float
    lr_max: float
    epochs: int

    def __call__(self, raw: Tensor) -> Tensor:
        """Squash raw actions ``(N, 2)`` to ``(N, 2)``: learning rate, epochs as a real number."""
        clipped = ((raw + 1) / 2).clamp(self.lr_min, self.lr_max)
        return clipped * raw.new_tensor([1.0, self.epochs / self.lr_max])

    def random(self, key: Key, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw squashed actions of the warm-up, ``(N, 2)``: uniform learning rate, uniform epochs.

        Args:
            key: one key an agent, ``(N,)``.
            dtype: floating-point type.
        """
        draws = key.uniform(2, dtype=dtype)
        lr = self.lr_min + draws[:, 0] * (self.lr_max - self.lr_min)
        return torch.stack([lr, 1 + (draws[:, 1] * self.epochs).floor()], dim=1)

    def settings(self, squashed: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rate ``(N,)`` and epochs ``(N,)`` int64, rounded down, at least 1."""
        return squashed[:, 0], squashed[:, 1].floor().long().clamp(1, self.epochs)


@dataclass(frozen=True)
class ReleasedWeights:
    """Aggregation weights of the server: (raw + 1)/2 divided by its sum.

    Attributes:
        width: number of weights.

    Example:
        >>> ReleasedWeights(2)(torch.tensor([[0.0, -0.5], [-1.0, -1.0]])).round(decimals=2).tolist()
        [[0.6700000166893005, 0.33000001311302185], [0.5, 0.5]]
    """

    width: int

    def __call__(self, raw: Tensor) -> Tensor:
        """Map raw actions ``(N, width)``; equal weights where all are -1 (0/0 in that code)."""
        return self._normalised((raw + 1) / 2)

    def random(self, key: Key, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw weights of the warm-up, ``(N, width)``: uniform in [0, 1), divided by their sum.

        Args:
            key: one key an agent, ``(N,)``.
            dtype: floating-point type.
        """
        return self._normalised(key.uniform(self.width, dtype=dtype))

    def _normalised(self, shares: Tensor) -> Tensor:
        total = shares.sum(1, keepdim=True)
        return torch.where(total > 0, shares / total, 1 / self.width)
