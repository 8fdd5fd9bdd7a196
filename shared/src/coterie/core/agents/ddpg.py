"""Deep deterministic policy gradient for many agents at once.

Lillicrap et al., ICLR 2016, Algorithm 1; Algorithms 1 and 2 of PAGE. N agents, each with networks,
optimizers and memory of its own, are stacked along the first axis. Losses are summed over the
agents; since Adam, the mean squared error and the target update treat every number on its own, the
result is that of N separate agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from coterie.core.agents.actor_critic import Perceptrons, Replay
from coterie.core.agents.settings import DDPGSettings
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_ADAM = RowAdam()
_FLAT = 1.5  # output of an actor beyond which the tanh's slope is below 0.19


@dataclass(frozen=True)
class Networks:
    """What learning changes; parameters as flat rows of `Perceptrons`.

    Attributes:
        actor: ``(N, P)``.
        critic: ``(N, Q)``.
        target_actor: ``(N, P)``.
        target_critic: ``(N, Q)``.
        actor_state: optimizer of the actors.
        critic_state: optimizer of the critics.
    """

    actor: Tensor
    critic: Tensor
    target_actor: Tensor
    target_critic: Tensor
    actor_state: RowState
    critic_state: RowState


@dataclass(frozen=True)
class Agents:
    """All that N agents are; a stacked tree, for a field of a `Private` or of a server's state.

    Attributes:
        networks: actors, critics and their optimizers.
        replay: memories.
        noise: ``(N, n_action)``, state of the Ornstein-Uhlenbeck process.
        steps: ``(N,)`` int64, exploring actions taken.
    """

    networks: Networks
    replay: Replay
    noise: Tensor
    steps: Tensor


@dataclass(frozen=True)
class DDPG:
    """The algorithm; holds no state.

    The cycle of a round: `act` on the state, let the environment answer, `remember`, `learn`.
    There is no terminal state. Every call needs a fresh key an agent (fold the round into it);
    results do not depend on how agents are divided among calls.

    Attributes:
        n_state: numbers in a state.
        n_action: numbers in an action.
        settings: of the agents.

    Example:
        >>> ddpg = DDPG(n_state=1, n_action=2)
        >>> key = Key.from_seed(0).fold(torch.arange(3))
        >>> agents = ddpg.begin(key.fold("begin"))
        >>> action, agents = ddpg.act(agents, torch.zeros(3, 1), key.fold(1))
        >>> action.shape, agents.steps.tolist()
        (torch.Size([3, 2]), [1, 1, 1])
    """

    n_state: int
    n_action: int
    settings: DDPGSettings = field(default_factory=DDPGSettings)

    @cached_property
    def actor(self) -> Perceptrons:
        """Architecture of the actors; tanh comes on top."""
        return Perceptrons(self.n_state, self.settings.hidden, self.n_action)

    @cached_property
    def critic(self) -> Perceptrons:
        """Architecture of the critics; the action joins at the second layer."""
        return Perceptrons(self.n_state, self.settings.hidden, 1, joined=self.n_action)

    def begin(self, key: Key, dtype: torch.dtype = torch.float32) -> Agents:
        """Create agents that know nothing.

        Args:
            key: one key an agent, ``(N,)``.
            dtype: floating-point type of everything in them.
        """
        n_agents, init = key.state.shape[0], self.settings.init
        actor = self.actor.begin(key.fold("actor"), init, dtype)
        self.actor.layers(actor)[-1].add_(math.atanh(self.settings.start))
        critic = self.critic.begin(key.fold("critic"), init, dtype)
        networks = Networks(
            actor,
            critic,
            actor.clone(),
            critic.clone(),
            _ADAM.begin({"actor": actor}),
            _ADAM.begin({"critic": critic}),
        )
        width = 2 * self.n_state + self.n_action + 1
        return Agents(
            networks,
            Replay.empty(n_agents, self.settings.capacity, width, dtype),
            torch.zeros(n_agents, self.n_action, dtype=dtype),
            torch.zeros(n_agents, dtype=torch.int64),
        )

    def policy(self, agents: Agents, state: Tensor) -> Tensor:
        """Choose what each agent holds best, without exploring.

        Args:
            agents: N of them.
            state: ``(N, n_state)``, finite.

        Returns:
            ``(N, n_action)`` in [-1, 1].

        Raises:
            ValueError: a state is not finite.
        """
        if not bool(state.isfinite().all()):
            raise ValueError("a state of an agent is not finite; bound it before it is acted on")
        state = state.to(agents.noise.dtype).unsqueeze(2)
        return self._act(agents.networks.actor, state).squeeze(2)

    def act(self, agents: Agents, state: Tensor, key: Key) -> tuple[Tensor, Agents]:
        """Explore: uniformly in an agent's first rounds, then `policy` and noise.

        Returns:
            ``(N, n_action)`` in [-1, 1]; the agents, one step older.
        """
        settings, dtype = self.settings, agents.noise.dtype
        policy = self.policy(agents, state)
        uniform = 2 * key.fold("uniform").uniform(self.n_action, dtype=dtype) - 1
        warm = self.warming_up(agents).unsqueeze(1)
        draws = key.fold("noise").normal(self.n_action, dtype=dtype)
        noise = agents.noise * (1 - settings.noise_theta * settings.noise_dt)
        noise = noise + settings.noise_sigma * settings.noise_dt**0.5 * draws
        scale = self._noise_scale(agents.steps).to(dtype).unsqueeze(1)
        action = torch.where(warm, uniform, (policy + scale * noise).clamp(-1, 1))
        noise = torch.where(warm, agents.noise, noise)
        return action, replace(agents, noise=noise, steps=agents.steps + 1)

    def warming_up(self, agents: Agents) -> Tensor:
        """Which agents will act at random, ``(N,)`` bool."""
        return agents.steps < self.settings.warm_up

    def remember(
        self,
        agents: Agents,
        state: Tensor,
        action: Tensor,
        reward: Tensor,
        next_state: Tensor,
        known: Tensor | None = None,
    ) -> Agents:
        """Store what each agent experienced in one round.

        An experience with a number that is not finite is left out, as if it were not known. Where a
        non-finite loss is the action's fault, pass the lowest reward instead.

        Args:
            agents: N of them.
            state: ``(N, n_state)``.
            action: ``(N, n_action)``, usually of `act`; any range is stored as it is.
            reward: ``(N,)``.
            next_state: ``(N, n_state)``.
            known: ``(N,)`` bool, agents that have an experience; the others stay as they are.
                None = all have.
        """
        parts = [state, action, reward.unsqueeze(1), next_state]
        experience = torch.cat([part.to(agents.noise.dtype) for part in parts], dim=1)
        finite = experience.isfinite().all(1)
        known = finite if known is None else known & finite
        return replace(agents, replay=agents.replay.add(experience, known))

    def learn(self, agents: Agents, key: Key) -> tuple[Agents, Tensor]:
        """Update networks and targets ``settings.updates`` times.

        An agent learns once its warm-up is over and it has an experience; one with fewer
        experiences than a batch learns from those, drawn with replacement. The others stay as they
        are.

        Returns:
            The agents; the mean loss of the critic over the updates, ``(N,)``, NaN for an agent
            that does not learn yet.
        """
        ready = ~self.warming_up(agents) & (agents.replay.count > 0)
        rows = ready.nonzero().flatten()
        loss = agents.noise.new_full(ready.shape, torch.nan)
        if not rows.numel():
            return agents, loss
        everyone = rows.numel() == ready.numel()
        networks = agents.networks if everyone else tree.take(agents.networks, rows)
        key = key if everyone else key.take(rows)
        losses = []
        for update in range(self.settings.updates):
            draw = key.fold("replay", update)
            batch = agents.replay.sample(rows, self.settings.batch_size, draw)
            networks, value = self.update(networks, batch)
            losses.append(value)
        loss[rows] = torch.stack(losses).mean(0)
        if not everyone:
            networks = tree.map_tensors(
                lambda old, new: old.index_copy(0, rows, new), agents.networks, networks
            )
        return replace(agents, networks=networks), loss

    def update(self, networks: Networks, batch: Tensor) -> tuple[Networks, Tensor]:
        """Update critic, then actor, then targets, on given experiences.

        Args:
            networks: of K agents.
            batch: ``(K, B, 2 n_state + n_action + 1)`` as in `Replay`.

        Returns:
            The networks; the loss of each critic before the update, ``(K,)``.
        """
        widths = [self.n_state, self.n_action, 1, self.n_state]
        state, action, reward, next_state = batch.mT.contiguous().split(widths, dim=1)
        target = reward
        if self.settings.gamma:  # else the future, a third of the work, counts for nothing
            with torch.no_grad():
                next_action = self._act(networks.target_actor, next_state)
                future = self.critic(networks.target_critic, next_state, next_action)
                target = reward + self.settings.gamma * future

        def critic_loss(critic: Tensor) -> Tensor:
            return (self.critic(critic, state, action) - target).square().mean((1, 2))

        grad, loss = _gradient(critic_loss, networks.critic)
        critic, critic_state = _step(
            "critic", networks.critic, grad, networks.critic_state, self.settings.critic_lr
        )

        def actor_loss(actor: Tensor) -> Tensor:
            output = self.actor(actor, state)
            value = self.critic(critic, state, output.tanh()).mean((1, 2))
            # A price on the whole output would draw actions to the middle of their range.
            beyond = (output.abs() - _FLAT).clamp(min=0)
            return self.settings.saturation * beyond.square().mean((1, 2)) - value

        grad, _ = _gradient(actor_loss, networks.actor)
        actor, actor_state = _step(
            "actor", networks.actor, grad, networks.actor_state, self.settings.actor_lr
        )
        tau = self.settings.tau
        new = Networks(
            actor,
            critic,
            torch.lerp(networks.target_actor, actor, tau),
            torch.lerp(networks.target_critic, critic, tau),
            actor_state,
            critic_state,
        )
        return new, loss

    def _act(self, actor: Tensor, state: Tensor) -> Tensor:
        return self.actor(actor, state).tanh()

    def _noise_scale(self, steps: Tensor) -> Tensor:
        """Share of the noise at each agent's age, ``(N,)``."""
        decay, final = self.settings.noise_decay, self.settings.noise_final
        if not decay:
            return torch.ones_like(steps, dtype=torch.float64)
        progress = ((steps - self.settings.warm_up).double() / decay).clamp(0, 1)
        return 1 - (1 - final) * progress


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


def _gradient(loss: Callable[[Tensor], Tensor], flat: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of each agent's loss in its own row, and the losses."""
    with torch.enable_grad():
        flat = flat.detach().requires_grad_()
        values = loss(flat)
        (grad,) = torch.autograd.grad(values.sum(), flat)
    return grad, values.detach()


def _step(
    name: str, flat: Tensor, grad: Tensor, state: RowState, lr: float
) -> tuple[Tensor, RowState]:
    params, state = _ADAM.step({name: flat}, {name: grad}, state, lr)
    return params[name], state
