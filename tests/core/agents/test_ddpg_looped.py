"""Stacked agents equal agents looped over with `torch.nn` and `torch.optim`."""

import math

import pytest
import torch
from tests.core.agents.looped_ddpg import LoopedAgent
from torch import Tensor

from coterie.core.agents.ddpg import DDPG, Agents
from coterie.core.agents.settings import DDPGSettings
from coterie.core.tensors.keys import Key

each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
SIZES = {"client": (1, 2), "wide": (3, 1), "server": (12, 12)}


def keys(n: int) -> Key:
    return Key.from_seed(7).fold(torch.arange(n))


def assert_equal(
    agents: Agents, looped: list[LoopedAgent], tolerance: float, steps: int = 0
) -> None:
    """Compare parameters.

    Args:
        agents: stacked.
        looped: one by one.
        tolerance: largest difference.
        steps: of Adam, where a gradient can be rounding alone: its sign, and so a whole step of
            the rate, is then the processor's. Of few parameters; 0 = of none.
    """
    rate = max(looped[0].settings.actor_lr, looped[0].settings.critic_lr)
    for number, agent in enumerate(looped):
        for name, flat in agent.flat().items():
            difference = (getattr(agents.networks, name)[number] - flat).abs()
            far = difference >= tolerance
            assert far.double().mean() <= (0.01 if steps else 0), (name, number)
            assert difference.max() < max(tolerance, 2 * rate * steps), (name, number)


@pytest.mark.parametrize(
    ("gamma", "size", "dtype"),
    [
        *((0.99, size, torch.float64) for size in SIZES),
        (0.0, "wide", torch.float64),
        (0.99, "wide", torch.float32),
    ],
)
def test_updates_equal_looped_agents(gamma: float, size: str, dtype: torch.dtype) -> None:
    n, batch_size = 4, 16
    ddpg = DDPG(*SIZES[size], DDPGSettings(gamma=gamma, tau=0.1, start=0.93, saturation=0.5))
    agents = ddpg.begin(keys(n), dtype)
    looped = [LoopedAgent(ddpg, agents, number) for number in range(n)]
    networks = agents.networks
    for step in range(6):
        draw = keys(n).fold("batch", step)
        parts = [
            draw.fold("state").uniform(batch_size, ddpg.n_state, dtype=dtype),
            2 * draw.fold("action").uniform(batch_size, ddpg.n_action, dtype=dtype) - 1,
            draw.fold("reward").normal(batch_size, 1, dtype=dtype),
            draw.fold("next").uniform(batch_size, ddpg.n_state, dtype=dtype),
        ]
        networks, loss = ddpg.update(networks, torch.cat(parts, dim=2))
        for number, agent in enumerate(looped):
            state, action, reward, next_state = (part[number] for part in parts)
            expected = agent.update(state, action, reward.squeeze(1), next_state)
            assert loss[number].item() == pytest.approx(expected, rel=1e-5)
    moved = (networks.actor - agents.networks.actor).abs().max()
    assert moved > 1e-3
    new = Agents(networks, agents.replay, agents.noise, agents.steps)
    assert_equal(new, looped, *((1e-12,) if dtype == torch.float64 else (1e-6, 8)))


def environment(state: Tensor, action: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Return reward and next state of each agent."""
    noise = 0.1 * key.fold("world").normal(state.shape[-1], dtype=state.dtype)
    next_state = 0.8 * state + 0.3 * action.mean(-1, keepdim=True) + noise
    return 1 - next_state.square().sum(-1), next_state


@each_dtype
def test_whole_cycle_equals_looped_agents(dtype: torch.dtype) -> None:
    """Warm-up, noise, unequal memories, a ring that wraps, failures and two updates a round."""
    n, rounds = 5, 30
    settings = DDPGSettings(
        warm_up=6, capacity=12, batch_size=8, updates=2, noise_decay=20, noise_final=0.3, tau=0.05
    )
    ddpg = DDPG(2, 3, settings)
    agents = ddpg.begin(keys(n), dtype)
    looped = [LoopedAgent(ddpg, agents, number) for number in range(n)]
    state = torch.zeros(n, 2, dtype=dtype)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    for time in range(rounds):
        key = keys(n).fold("round", time)
        action, agents = ddpg.act(agents, state, key)
        reward, next_state = environment(state, action, key)
        known = (torch.arange(n) + time) % n != 0
        known[4] = time > 20
        agents = ddpg.remember(agents, state, action, reward, next_state, known)
        agents, loss = ddpg.learn(agents, key)
        for number, agent in enumerate(looped):
            own = Key(key.state[number])
            expected = agent.act(state[number], own)
            assert (action[number] - expected).abs().max() < tolerance
            if known[number]:
                agent.remember(state[number], action[number], reward[number], next_state[number])
            expected_loss = agent.learn(own)
            assert math.isnan(expected_loss) == bool(loss[number].isnan())
            if not math.isnan(expected_loss):
                assert loss[number].item() == pytest.approx(expected_loss, rel=1e-3, abs=1e-6)
        state = next_state
    assert_equal(agents, looped, tolerance)
    assert agents.replay.filled.tolist() == [len(agent.memory) for agent in looped]


def test_initial_parameters_keep_their_bounds() -> None:
    ddpg = DDPG(9, 4, DDPGSettings(hidden=(16, 25)))
    weight1, bias1, weight2, bias2, weight3, bias3 = ddpg.critic.layers(
        ddpg.begin(keys(50)).networks.critic
    )
    for tensor, bound in (
        (weight1, 1 / 3),
        (bias1, 1 / 3),
        (weight2, 20**-0.5),
        (bias2, 20**-0.5),
        (weight3, 0.003),
        (bias3, 0.003),
    ):
        assert 0.95 * bound < tensor.abs().max() <= bound
        assert tensor.double().std().item() == pytest.approx(bound / 3**0.5, rel=0.15)


def test_released_initial_weights_are_bounded_by_outputs() -> None:
    ddpg = DDPG(9, 4, DDPGSettings(hidden=(16, 25), init="fan_out"))
    layers = ddpg.critic.layers(ddpg.begin(keys(50)).networks.critic)
    bounds = [layer.abs().max().item() for layer in layers]
    assert bounds == pytest.approx([1 / 4, 1 / 3, 1 / 5, 20**-0.5, 0.003, 0.003], rel=0.05)
