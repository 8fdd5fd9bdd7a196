"""How the follower chooses the weights p(t): by its agent, or by minimising its loss.

CE(sum_i p_i w_i; D) over p >= 0, sum p = 1. Where scores are linear in the parameters (softmax
regression) this is convex, so that `coterie.core.solvers` certifies its minimum; for nets
it gives the best found and no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.agents.action_maps import Simplex
from coterie.core.agents.ddpg import DDPG, Agents
from coterie.core.errors import UserError
from coterie.core.local_training.losses import Batch, MethodOf
from coterie.core.local_training.row_optimizer import Params
from coterie.core.models.classifier import SoftmaxRegression
from coterie.core.solvers import Minimum, Objective, minimise
from coterie.core.tensors.keys import Key
from coterie.page.messages import Experience
from coterie.page.settings import GameSettings, Settings


class SoftmaxMixture:
    """Cross-entropy of mixed softmax regressions; convex.

    Scores are linear in the parameters, so a gradient costs two products of ``(n, d)`` with
    ``(d, K)``, and no tensor of every client's scores is made.

    Args:
        weight: ``(N, K, d)`` of the clients' layers, K classes.
        bias: ``(N, K)``.
        x: ``(n, d)`` samples of the follower.
        y: ``(n,)`` int64 classes.
        dtype: to compute in; a bound needs the default, an answer that is good enough takes half
            the time in float32.

    Raises:
        ValueError: parameters of a client are not finite; leave that client out.
    """

    convex = True

    def __init__(
        self, weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float64
    ) -> None:
        stacked = torch.cat([weight, bias[..., None]], -1).to(dtype)
        if not stacked.isfinite().all():
            raise ValueError("a client's parameters are not finite: mix the other clients only")
        self.n = stacked.shape[0]
        self._shape = stacked.shape[1:]
        self._flat = stacked.reshape(self.n, -1)
        self._x = torch.cat([x, torch.ones_like(x[:, :1])], -1).to(dtype)
        self._y = y[:, None]

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at ``p``, ``(N,)`` float64."""
        scores = self._x @ (p.to(self._flat) @ self._flat).reshape(self._shape).T
        logs = scores.log_softmax(-1)
        right = logs.gather(1, self._y)
        error = logs.exp_().scatter_(1, self._y, right.expm1())
        slope = self._flat @ (error.T @ self._x).reshape(-1) / len(self._x)
        return -float(right.mean()), slope.double()


class ModelMixture:
    """Loss of mixed networks by autograd; not convex in general.

    Args:
        module: has ``loss(batch)``, the mean over the samples.
        stacked: every parameter of the clients, ``(N, ...)``.
        batches: the follower's samples, in parts that fit into memory.
    """

    convex = False

    def __init__(
        self, module: nn.Module, stacked: Params, batches: Sequence[dict[str, Tensor]]
    ) -> None:
        self._loss = MethodOf(module, "loss")
        self._stacked = {name: value.detach() for name, value in stacked.items()}
        self._batches = batches
        self.n = next(iter(stacked.values())).shape[0]

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at ``p``, ``(N,)`` float64."""
        mixed = {
            name: torch.tensordot(p.to(value), value, 1).requires_grad_()
            for name, value in self._stacked.items()
        }
        n_samples = sum(len(batch["y"]) for batch in self._batches)
        total, slope = 0.0, torch.zeros(self.n, dtype=torch.float64)
        for batch in self._batches:
            loss = self._loss(mixed, batch) * (len(batch["y"]) / n_samples)
            slopes = torch.autograd.grad(loss, list(mixed.values()), materialize_grads=True)
            total += float(loss.detach())
            for value, part in zip(self._stacked.values(), slopes, strict=True):
                slope += (value.flatten(1) @ part.flatten()).double()
        return total, slope


def best_weights(mixture: Objective, tolerance: float, max_steps: int = 2000) -> Minimum:
    """Minimise over the simplex from equal weights, see `minimise`.

    Raises:
        UserError: the mean of the models has no finite loss.
    """
    try:
        return minimise(mixture, tolerance=tolerance, max_steps=max_steps)
    except ValueError as error:
        raise UserError(
            "the mean of the clients' models has no finite loss: lower 'train.lr' or set "
            "'train.clip'"
        ) from error


# How the follower chooses the weights p(t): by its agent, or by minimising its loss.

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
