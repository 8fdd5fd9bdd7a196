"""Replay memories, one an agent, stacked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key


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
