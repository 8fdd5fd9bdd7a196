"""Agents find what is known to be best."""

import pytest
import torch

from coterie.core.agents.ddpg import DDPG
from coterie.core.agents.settings import DDPGSettings
from coterie.core.tensors.keys import Key


def test_bandits_with_different_best_actions() -> None:
    """Reward -(a - a*)², another a* for each agent, found in 90 rounds."""
    n, settings = (
        8,
        DDPGSettings(
            gamma=0.0, critic_lr=2e-2, actor_lr=1e-3, updates=6, batch_size=64, noise_decay=60
        ),
    )
    ddpg, key = DDPG(1, 1, settings), Key.from_seed(1).fold(torch.arange(n))
    agents = ddpg.begin(key.fold("begin"))
    best = torch.linspace(-0.8, 0.8, n).unsqueeze(1)
    state = torch.ones(n, 1)
    for time in range(90):
        action, agents = ddpg.act(agents, state, key.fold(time))
        reward = -(action - best).square().squeeze(1)
        agents = ddpg.remember(agents, state, action, reward, state)
        agents, _ = ddpg.learn(agents, key.fold(time))
    error = (ddpg.policy(agents, state) - best).abs()
    assert error.mean() < 0.15  # of a range of length 2; an arbitrary action is 0.6 off
    assert error.max() < 0.4


def linear_quadratic_gain(a: float, b: float, cost: float, gamma: float) -> float:
    """Gain K of the best control u = -K x of x' = a x + b u, by the Riccati equation."""
    value = 1.0
    for _ in range(1000):
        slope = gamma * a * b * value
        value = 1 + gamma * a * a * value - slope**2 / (cost + gamma * b * b * value)
    return gamma * a * b * value / (cost + gamma * b * b * value)


def test_linear_quadratic_control() -> None:
    """Discounted control of x' = a x + b u + noise at cost x² + c u², against the closed form."""
    a, b, cost, gamma, n = 0.8, 0.5, 0.3, 0.8, 6
    settings = DDPGSettings(
        gamma=gamma, actor_lr=1e-3, tau=0.02, updates=8, batch_size=64, noise_decay=400
    )
    ddpg, key = DDPG(1, 1, settings), Key.from_seed(0).fold(torch.arange(n))
    agents = ddpg.begin(key.fold("begin"))
    state = torch.zeros(n, 1)
    for time in range(100):
        action, agents = ddpg.act(agents, state, key.fold(time))
        next_state = a * state + b * action + 0.2 * key.fold("world", time).normal(1)
        reward = -(state.square() + cost * action.square()).squeeze(1)
        agents = ddpg.remember(agents, state, action, reward, next_state)
        agents, _ = ddpg.learn(agents, key.fold(time))
        state = next_state
    grid = torch.linspace(-0.5, 0.5, 11)
    controls = torch.stack([ddpg.policy(agents, x.expand(n, 1)).squeeze(1) for x in grid], dim=1)
    gains = -(controls * grid).sum(1) / grid.square().sum()
    assert gains.mean().item() == pytest.approx(linear_quadratic_gain(a, b, cost, gamma), abs=0.2)
