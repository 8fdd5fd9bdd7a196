"""DDPG written plainly, one agent at a time, of `torch.nn` and `torch.optim`: the reference."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from coterie.core.agents.ddpg import DDPG, Agents
from coterie.core.tensors.keys import Key


class Actor(nn.Module):
    def __init__(self, n_state: int, n_action: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.fc1 = nn.Linear(n_state, hidden[0])
        self.fc2 = nn.Linear(hidden[0], hidden[1])
        self.fc3 = nn.Linear(hidden[1], n_action)

    def output(self, state: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(state)))))

    def forward(self, state: Tensor) -> Tensor:
        return torch.tanh(self.output(state))


class Critic(nn.Module):
    def __init__(self, n_state: int, n_action: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.fc1 = nn.Linear(n_state, hidden[0])
        self.fc2 = nn.Linear(hidden[0] + n_action, hidden[1])
        self.fc3 = nn.Linear(hidden[1], 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        features = torch.relu(self.fc1(state))
        return self.fc3(torch.relu(self.fc2(torch.cat([features, action], 1)))).squeeze(1)


class LoopedAgent:
    """One agent with parameters copied from the stacked ones; random draws by its own key."""

    def __init__(self, ddpg: DDPG, agents: Agents, number: int) -> None:
        self.ddpg, self.settings, self.dtype = ddpg, ddpg.settings, agents.noise.dtype
        sizes = (ddpg.n_state, ddpg.n_action, self.settings.hidden)
        self.actor = Actor(*sizes).to(self.dtype)
        self.critic = Critic(*sizes).to(self.dtype)
        for module, flat in (
            (self.actor, agents.networks.actor[number]),
            (self.critic, agents.networks.critic[number]),
        ):
            assert flat.numel() == sum(p.numel() for p in module.parameters())
            nn.utils.vector_to_parameters(flat.clone(), module.parameters())
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), self.settings.actor_lr)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), self.settings.critic_lr)
        self.memory: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.noise = torch.zeros(ddpg.n_action, dtype=self.dtype)
        self.steps = 0

    def act(self, state: Tensor, key: Key) -> Tensor:
        settings, width = self.settings, self.ddpg.n_action
        self.steps += 1
        if self.steps <= settings.warm_up:
            return 2 * key.fold("uniform").uniform(width, dtype=self.dtype) - 1
        age = self.steps - 1 - settings.warm_up
        scale = 1.0
        if settings.noise_decay:
            share = min(age / settings.noise_decay, 1)
            scale = (1 - share) + share * settings.noise_final
        draw = key.fold("noise").normal(width, dtype=self.dtype)
        self.noise += -settings.noise_theta * self.noise * settings.noise_dt
        self.noise += settings.noise_sigma * math.sqrt(settings.noise_dt) * draw
        with torch.no_grad():
            policy = self.actor(state.unsqueeze(0)).squeeze(0)
        return torch.clamp(policy + scale * self.noise, -1, 1)

    def remember(self, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor) -> None:
        if len(self.memory) < self.settings.capacity:
            self.memory.append((state, action, reward, next_state))
        else:
            self.memory[self.written % self.settings.capacity] = (state, action, reward, next_state)
        self.written = getattr(self, "written", 0) + 1

    def learn(self, key: Key) -> float:
        if self.steps < self.settings.warm_up or not self.memory:
            return math.nan
        losses = []
        for update in range(self.settings.updates):
            counter = torch.arange(self.settings.batch_size)
            chosen = key.fold("replay", update).integers(len(self.memory), counter)
            columns = zip(*(self.memory[i] for i in chosen.tolist()), strict=True)
            losses.append(self.update(*(torch.stack(column) for column in columns)))
        return sum(losses) / len(losses)

    def update(self, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor) -> float:
        with torch.no_grad():
            future = self.target_critic(next_state, self.target_actor(next_state))
            target = reward + self.settings.gamma * future
        loss = nn.functional.mse_loss(self.critic(state, action), target)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        self.actor_optimizer.zero_grad()
        output = self.actor.output(state)
        price = self.settings.saturation * (torch.relu(output.abs() - 1.5) ** 2).mean()
        (price - self.critic(state, torch.tanh(output)).mean()).backward()
        self.actor_optimizer.step()
        tau = self.settings.tau
        with torch.no_grad():
            for module, target_module in (
                (self.actor, self.target_actor),
                (self.critic, self.target_critic),
            ):
                for new, old in zip(module.parameters(), target_module.parameters(), strict=True):
                    old.copy_((1 - tau) * old + tau * new)
        return loss.item()

    def flat(self) -> dict[str, Tensor]:
        modules = {
            "actor": self.actor,
            "critic": self.critic,
            "target_actor": self.target_actor,
            "target_critic": self.target_critic,
        }
        return {
            name: nn.utils.parameters_to_vector(module.parameters()).detach()
            for name, module in modules.items()
        }
