"""Networks and memories of actor-critic agents, one an agent, all of them stacked."""

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


# Replay memories, one an agent, stacked.


@dataclass(frozen=True)
class Replay:
    """The last experiences of N agents; a value, nothing is changed in place.

    Attributes:
        rows: ``(N, capacity, W)``, a ring an agent: state, action, reward, next state side by side,
            so that one gather draws a batch.
        count: ``(N,)`` int64, experiences that each agent ever had.

    Example:
        >>> replay = Replay.empty(2, capacity=3, width=1)
        >>> replay = replay.add(torch.ones(2, 1), torch.tensor([True, False]))
        >>> replay.filled.tolist(), replay.position.tolist()
        ([1, 0], [1, 0])
    """

    rows: Tensor
    count: Tensor

    @staticmethod
    def empty(
        n_agents: int, capacity: int, width: int, dtype: torch.dtype = torch.float32
    ) -> Replay:
        """Memories without an experience."""
        rows = torch.zeros(n_agents, capacity, width, dtype=dtype)
        return Replay(rows, torch.zeros(n_agents, dtype=torch.int64))

    @property
    def filled(self) -> Tensor:
        """``(N,)`` int64, experiences at hand."""
        return self.count.clamp(max=self.rows.shape[1])

    @property
    def position(self) -> Tensor:
        """``(N,)`` int64, place of the next experience; that of the oldest in a full ring."""
        return self.count % self.rows.shape[1]

    def add(self, experience: Tensor, known: Tensor) -> Replay:
        """Write one experience each to some agents.

        The ring is copied: 2 MB for 100 agents of 5 numbers and 1000 places, a third of a
        millisecond, and an earlier value stays what it was.

        Args:
            experience: ``(N, W)``.
            known: ``(N,)`` bool; the other agents stay as they are.
        """
        agents = known.nonzero().flatten()
        rows = self.rows.index_put((agents, self.position[agents]), experience[agents])
        return Replay(rows, self.count + known)

    def sample(self, agents: Tensor, batch_size: int, key: Key) -> Tensor:
        """Draw experiences uniformly, with replacement, from what each agent has.

        Args:
            agents: ``(K,)`` int64, agents with at least one experience.
            batch_size: experiences an agent.
            key: one key for each of the K agents.

        Returns:
            ``(K, batch_size, W)``.
        """
        high = self.filled[agents].unsqueeze(1)
        chosen = Key(key.state.unsqueeze(1)).integers(high, torch.arange(batch_size))
        return self.rows[agents.unsqueeze(1), chosen]
