"""How the follower chooses the weights p(t): by its agent, or by minimising its loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.agents.action_maps import Simplex
from coterie.core.agents.ddpg import DDPG, Agents
from coterie.core.local_training.losses import Batch
from coterie.core.local_training.row_optimizer import Params
from coterie.core.models.classifier import SoftmaxRegression
from coterie.core.solvers.simplex import Objective
from coterie.core.tensors.keys import Key
from coterie.page.game.mixture import ModelMixture, SoftmaxMixture, best_weights
from coterie.page.messages import Experience
from coterie.page.settings.run import GameSettings, Settings

_BATCH = 500  # samples of D_CS at a time
_GAP = 1e-3  # of the loss, at which a best response is good enough


@dataclass(frozen=True)
class AgentState:
    """What the server remembers of its strategy.

    Attributes:
        agents: its agent, N = 1; None where it does not learn.
        last: its last stage, until the next state is seen.
        p: ``(N,)`` the agent's last weights, of all clients.
    """

    agents: Agents | None
    last: Experience
    p: Tensor


class LearnedAnswer:
    """The server's agent (Algorithm 1): accuracies of the clients' models -> weights.

    Args:
        n_clients: N.
        settings: of the paper, resolved.
    """

    def __init__(self, n_clients: int, settings: Settings) -> None:
        self._clipped = settings.game.actions == "clipped"
        self._simplex = Simplex(n_clients)
        self.ddpg = DDPG(n_clients, n_clients, settings.server_agent.ddpg())

    def begin(self, key: Key, dtype: torch.dtype) -> AgentState:
        """An agent that knows nothing."""
        n = self.ddpg.n_state
        agents = self.ddpg.begin(key.fold(torch.zeros(1, dtype=torch.int64)), dtype)
        nothing = Experience.none(self.ddpg, 1, dtype)
        return AgentState(agents, nothing, torch.full((n,), 1 / n, dtype=dtype))

    def choose(self, agent: AgentState, state: Tensor, key: Key) -> AgentState:
        """Complete the last stage by the state it led to, s_CS(t) ``(N,)``, learn, and act."""
        assert agent.agents is not None
        last, own = agent.last, key.fold(torch.zeros(1, dtype=torch.int64))
        now = state[None].to(last.state.dtype)
        agents = self.ddpg.remember(
            agent.agents, last.state, last.action, last.utility, now, last.known
        )
        agents, _ = self.ddpg.learn(agents, own.fold("learn"))
        warm = bool(self.ddpg.warming_up(agents))
        raw, agents = self.ddpg.act(agents, now, own.fold("act"))
        p = self.weights(raw)
        if self._clipped and warm:
            p = _normalised(own.uniform(len(state), dtype=raw.dtype))
        played = p if self._clipped else raw
        last = Experience(now, played, now.new_zeros(1), torch.tensor([True]))
        return AgentState(agents, last, p[0])

    def policy(self, agent: AgentState, state: Tensor) -> Tensor:
        """Weights ``(N,)`` without exploring."""
        assert agent.agents is not None
        return self.weights(self.ddpg.policy(agent.agents, state[None]))[0]

    def rewarded(self, agent: AgentState, reward: Tensor) -> AgentState:
        """Note the reward ``()`` of the stage that was just played."""
        own = reward.reshape(1).to(agent.last.utility.dtype)
        return replace(agent, last=replace(agent.last, utility=own))

    def weights(self, raw: Tensor) -> Tensor:
        """Weights ``(1, N)`` of raw actions; as the public code has them, where they are clipped.

        There they are (raw + 1)/2 divided by the sum, and equal where all are -1 (0/0 in the code).
        """
        return _normalised((raw + 1) / 2) if self._clipped else self._simplex(raw)


def _normalised(shares: Tensor) -> Tensor:
    total = shares.sum(1, keepdim=True)
    return torch.where(total > 0, shares / total, 1 / shares.shape[1])


class _Even:
    """A mixture's loss with a price on uneven weights, τ/2 (N Σ p_i² - 1)."""

    def __init__(self, mixture: Objective, price: float) -> None:
        self._mixture, self._price = mixture, price
        self.n, self.convex = mixture.n, mixture.convex

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at ``p``, ``(N,)``."""
        loss, slope = self._mixture.slope(p)
        uneven = self.n * float(p @ p) - 1
        return loss + self._price / 2 * uneven, slope + self._price * self.n * p


def best_response(module: nn.Module, models: Params, samples: Batch, game: GameSettings) -> Tensor:
    """Minimise the loss of Σ p_i w_i on D_CS over the simplex: weights ``(A,)`` float64.

    The search begins at equal weights, so that the answer depends on the models alone. It computes
    in the models' precision: its gap is far above float32's, which takes half the time.

    Args:
        module: gives the form of the model.
        models: parameters of A clients, each ``(A, ...)``.
        samples: D_CS, ``x`` and ``y``.
        game: price of uneven weights, most steps of the search.
    """
    dtype = next(iter(models.values())).dtype
    mixture = _Even(mixture_of(module, models, samples, dtype), game.evenness or 0.0)
    return best_weights(mixture, _GAP, game.steps).p


def mixture_of(
    module: nn.Module, models: Params, samples: Batch, dtype: torch.dtype = torch.float64
) -> Objective:
    """The follower's loss as a function of p; convex for softmax regression.

    Args:
        module: gives the form of the model.
        models: parameters of A clients, each ``(A, ...)``.
        samples: D_CS.
        dtype: that softmax regression computes in; other networks do in their own.
    """
    if isinstance(module, SoftmaxRegression):
        weight, bias = models["head.weight"], models["head.bias"]
        return SoftmaxMixture(weight, bias, samples["x"], samples["y"], dtype)
    parts = zip(samples["x"].split(_BATCH), samples["y"].split(_BATCH), strict=True)
    batches: list[dict[str, Any]] = [{"x": x, "y": y} for x, y in parts]
    return ModelMixture(module, models, batches)
