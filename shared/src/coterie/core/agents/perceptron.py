"""Three-layer perceptrons, one an agent, the parameters of each in one flat row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key

_LAST = 3e-3


@dataclass(frozen=True)
class Perceptrons:
    """Architecture of N perceptrons with ReLU; parameters are a row of P numbers each.

    One row an agent, and not a tensor a layer: the optimizer and the target networks then need a
    sixth of the calls, which is what small networks cost. Samples are columns: with the batch as
    the last axis the small products are up to four times as fast.

    Attributes:
        inputs: width of the input.
        hidden: widths of the two hidden layers.
        outputs: width of the output, which is linear.
        joined: width of a further input of the second layer.

    Example:
        >>> networks = Perceptrons(inputs=2, hidden=(4, 3), outputs=1)
        >>> flat = networks.begin(Key.from_seed(0).fold(torch.arange(5)))
        >>> networks(flat, torch.ones(5, 2, 7)).shape
        torch.Size([5, 1, 7])
    """

    inputs: int
    hidden: tuple[int, int]
    outputs: int
    joined: int = 0

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes (outputs, inputs) of weight and bias of each layer, in the order of a row."""
        first, second = self.hidden
        return (
            (first, self.inputs),
            (first, 1),
            (second, first + self.joined),
            (second, 1),
            (self.outputs, second),
            (self.outputs, 1),
        )

    def begin(
        self,
        key: Key,
        init: Literal["fan_in", "fan_out"] = "fan_in",
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Draw parameters as Lillicrap et al. (ICLR 2016, supplement 7) do.

        Uniform within ±1/√inputs of the layer, in the last layer within ±0.003. With ``fan_out``
        the hidden weights, not the biases, are within ±1/√outputs.

        Args:
            key: one key an agent, ``(N,)``.
            init: see above.
            dtype: floating-point type.

        Returns:
            ``(N, P)``.
        """
        first, second = self.hidden
        fans = [self.inputs, first + self.joined]
        widths = fans if init == "fan_in" else [first, second]
        bounds = [width**-0.5 for pair in zip(widths, fans, strict=True) for width in pair]
        bounds += [_LAST, _LAST]
        bound = torch.cat(
            [
                torch.full((rows * columns,), limit, dtype=torch.float64)
                for (rows, columns), limit in zip(self.shapes, bounds, strict=True)
            ]
        )
        draws = key.uniform(bound.numel(), dtype=torch.float64)
        return ((2 * draws - 1) * bound).to(dtype)

    def layers(self, flat: Tensor) -> list[Tensor]:
        """Parameters ``(N, P)`` as views ``(N, outputs, inputs)``, weight and bias by turns."""
        sizes = [rows * columns for rows, columns in self.shapes]
        parts = flat.split(sizes, dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def __call__(self, flat: Tensor, inputs: Tensor, joined: Tensor | None = None) -> Tensor:
        """Evaluate every network on inputs of its own.

        Args:
            flat: ``(N, P)``.
            inputs: ``(N, inputs, B)``.
            joined: ``(N, joined, B)``, if there is a further input.

        Returns:
            ``(N, outputs, B)``.
        """
        weight1, bias1, weight2, bias2, weight3, bias3 = self.layers(flat)
        features = torch.baddbmm(bias1, weight1, inputs).relu()
        if joined is not None:
            features = torch.cat([features, joined], dim=1)
        features = torch.baddbmm(bias2, weight2, features).relu()
        return torch.baddbmm(bias3, weight3, features)
