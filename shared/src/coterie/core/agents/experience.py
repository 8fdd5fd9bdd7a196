"""What agents lived through in their last round, until they see where it led."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.agents.ddpg import DDPG


@dataclass(frozen=True)
class Experience:
    """A round of N agents; it is complete when the next state is seen.

    Attributes:
        state: ``(N, n_state)``.
        action: ``(N, n_action)``.
        utility: ``(N,)`` what the round was worth.
        known: ``(N,)`` bool, False before an agent's first round.
    """

    state: Tensor
    action: Tensor
    utility: Tensor
    known: Tensor

    @staticmethod
    def none(ddpg: DDPG, n_agents: int, dtype: torch.dtype = torch.float32) -> Experience:
        """What agents have before their first round."""
        return Experience(
            torch.zeros(n_agents, ddpg.n_state, dtype=dtype),
            torch.zeros(n_agents, ddpg.n_action, dtype=dtype),
            torch.zeros(n_agents, dtype=dtype),
            torch.zeros(n_agents, dtype=torch.bool),
        )
