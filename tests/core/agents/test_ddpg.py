"""How stacked agents behave: chunks, order, memories, failures, storage."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from coterie.core.agents.actor_critic import Replay
from coterie.core.agents.ddpg import DDPG, Agents
from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.messages import Private
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

SMALL = DDPGSettings(warm_up=3, capacity=5, batch_size=4, hidden=(8, 6))


def keys(n: int) -> Key:
    return Key.from_seed(3).fold(torch.arange(n))


def play(ddpg: DDPG, agents: Agents, key: Key, rounds: int, begin: int = 0) -> Agents:
    """Let agents live for some rounds in worlds of their own."""
    n = agents.steps.numel()
    for time in range(begin, begin + rounds):
        now = key.fold(time)
        state = now.fold("state").uniform(ddpg.n_state)
        action, agents = ddpg.act(agents, state, now)
        reward = now.fold("reward").uniform(1).squeeze(1) - action.square().sum(1)
        known = now.fold("known").uniform(1).squeeze(1) < 0.8
        next_state = key.fold(time + 1, "state").uniform(ddpg.n_state)
        agents = ddpg.remember(agents, state, action, reward, next_state, known)
        agents, loss = ddpg.learn(agents, now)
        assert loss.shape == (n,)
    return agents


def difference(first: Agents, second: Agents) -> float:
    pairs = zip(tree.tensors(first), tree.tensors(second), strict=True)
    return max((a.double() - b.double()).abs().max().item() for (_, a), (_, b) in pairs)


def experience(ddpg: DDPG, n: int, value: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    state = torch.full((n, ddpg.n_state), value)
    return state, torch.full((n, ddpg.n_action), value), torch.full((n,), value), state + 0.5


@pytest.mark.parametrize(("n_state", "n_action"), [(1, 2), (6, 6)])
def test_chunks_of_agents_give_the_same_agents(n_state: int, n_action: int) -> None:
    n, ddpg = 7, DDPG(n_state, n_action, SMALL)
    together = play(ddpg, ddpg.begin(keys(n)), keys(n), 12)
    parts = [
        play(ddpg, ddpg.begin(keys(n).take(rows)), keys(n).take(rows), 12)
        for rows in (torch.tensor([0]), torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6]))
    ]
    apart = tree.concatenate(tree.concatenate(parts[0], parts[1]), parts[2])
    assert difference(together, apart) < 1e-6
    assert torch.equal(together.replay.count, apart.replay.count)


def test_permuting_agents_with_their_keys_permutes_the_result() -> None:
    n, ddpg = 6, DDPG(2, 2, SMALL)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    straight = play(ddpg, ddpg.begin(keys(n)), keys(n), 12)
    permuted = play(ddpg, ddpg.begin(keys(n).take(order)), keys(n).take(order), 12)
    assert difference(tree.take(straight, order), permuted) < 1e-6
    assert difference(straight, permuted) > 1e-2


def test_agents_differ_and_rounds_differ() -> None:
    ddpg = DDPG(1, 2, SMALL)
    agents = ddpg.begin(keys(3))
    state = torch.zeros(3, 1)
    first, agents = ddpg.act(agents, state, keys(3).fold(1))
    second, _ = ddpg.act(agents, state, keys(3).fold(2))
    assert torch.cat([first, second]).unique().numel() == 12


def test_newcomers_warm_up_beside_old_agents() -> None:
    ddpg = DDPG(1, 2, SMALL)
    old = play(ddpg, ddpg.begin(keys(2)), keys(2), 8)
    new = ddpg.begin(Key.from_seed(3).fold(torch.tensor([8])))
    mixed = tree.concatenate(old, new)
    assert ddpg.warming_up(mixed).tolist() == [False, False, True]
    key = keys(3).fold("later")
    _, mixed = ddpg.act(mixed, torch.zeros(3, 1), key)
    mixed = ddpg.remember(mixed, *experience(ddpg, 3, 0.1))
    after, loss = ddpg.learn(mixed, key)
    assert loss.isnan().tolist() == [False, False, True]
    third = torch.tensor([2])
    assert difference(tree.take(after, third), tree.take(mixed, third)) == 0
    alone, _ = ddpg.learn(tree.take(mixed, torch.tensor([0, 1])), key.take(torch.tensor([0, 1])))
    assert difference(tree.take(after, torch.tensor([0, 1])), alone) < 1e-7


def test_sampling_is_uniform_over_each_agents_own_part() -> None:
    replay = Replay.empty(3, capacity=10, width=1)
    for time in range(14):
        known = torch.tensor([time < 1, time < 4, True])
        replay = replay.add(torch.full((3, 1), float(time)), known)
    batch = replay.sample(torch.arange(3), 20000, keys(3)).squeeze(2)
    for row, held in zip(batch, (range(1), range(4), range(4, 14)), strict=True):
        values, counts = row.unique(return_counts=True)
        assert values.tolist() == list(held)
        expected = 20000 / len(held)
        assert (counts - expected).abs().max() < 5 * math.sqrt(expected) + 1e-9


def test_ring_wraps_over_the_oldest() -> None:
    ddpg = DDPG(1, 1, SMALL)
    agents = ddpg.begin(keys(1))
    for time in range(7):
        agents = ddpg.remember(agents, *experience(ddpg, 1, float(time)))
    assert agents.replay.rows[0, :, 0].tolist() == [5, 6, 2, 3, 4]
    assert agents.replay.rows[0, 1].tolist() == [6, 6, 6, 6.5]
    assert (agents.replay.filled.item(), agents.replay.position.item()) == (5, 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", range(4))
def test_experience_that_is_not_finite_is_left_out(bad: float, part: int) -> None:
    ddpg = DDPG(2, 2, SMALL)
    agents = ddpg.begin(keys(3))
    parts = list(experience(ddpg, 3, 0.5))
    parts[part][1] = bad
    agents = ddpg.remember(agents, *parts)
    assert agents.replay.count.tolist() == [1, 0, 1]
    assert bool(agents.replay.rows.isfinite().all())


def test_unknown_experiences_leave_agents_alone() -> None:
    ddpg = DDPG(1, 2, SMALL)
    agents = ddpg.begin(keys(3))
    after = ddpg.remember(
        agents, *experience(ddpg, 3, 0.5), known=torch.tensor([False, True, False])
    )
    assert after.replay.count.tolist() == [0, 1, 0]
    assert (
        difference(
            ddpg.remember(agents, *experience(ddpg, 3, 1.0), known=~torch.ones(3).bool()), agents
        )
        == 0
    )


def test_state_that_is_not_finite_is_refused() -> None:
    ddpg = DDPG(1, 2, SMALL)
    with pytest.raises(ValueError, match="not finite"):
        ddpg.act(ddpg.begin(keys(2)), torch.tensor([[0.0], [math.nan]]), keys(2))


def test_no_call_changes_its_arguments() -> None:
    ddpg = DDPG(1, 2, SMALL)
    agents = play(ddpg, ddpg.begin(keys(4)), keys(4), 8)
    kept = tree.clone(agents)
    play(ddpg, agents, keys(4), 8, begin=8)
    assert difference(agents, kept) == 0


def test_agent_without_experience_does_not_learn() -> None:
    ddpg = DDPG(1, 2, dataclasses.replace(SMALL, warm_up=0))
    agents = ddpg.begin(keys(2))
    after, loss = ddpg.learn(agents, keys(2))
    assert difference(after, agents) == 0
    assert bool(loss.isnan().all())


def test_agent_with_one_experience_learns() -> None:
    ddpg = DDPG(1, 2, dataclasses.replace(SMALL, warm_up=0))
    agents = ddpg.remember(ddpg.begin(keys(2)), *experience(ddpg, 2, 0.5))
    after, loss = ddpg.learn(agents, keys(2))
    assert bool((loss > 0).all())
    assert not torch.equal(after.networks.actor, agents.networks.actor)


def test_noise_follows_its_stationary_law_and_its_schedule() -> None:
    settings = DDPGSettings(warm_up=0, noise_decay=50, noise_final=0.25)
    n, ddpg = 4000, DDPG(1, 1, dataclasses.replace(settings, hidden=(2, 2), capacity=1))
    agents = ddpg.begin(keys(n))
    for time in range(60):
        action, agents = ddpg.act(agents, torch.zeros(n, 1), keys(n).fold(time))
    spread = 0.2 / math.sqrt(1 - 0.85**2)
    assert agents.noise.std().item() == pytest.approx(spread, rel=0.05)
    assert agents.noise.mean().item() == pytest.approx(0, abs=4 * spread / math.sqrt(n))
    deviation = action - ddpg.policy(agents, torch.zeros(n, 1))
    assert deviation.std().item() == pytest.approx(0.25 * spread, rel=0.05)


def test_warm_up_is_uniform_then_policy() -> None:
    n, ddpg = 4000, DDPG(1, 1, DDPGSettings(warm_up=1, noise_sigma=0, hidden=(2, 2), capacity=1))
    action, agents = ddpg.act(ddpg.begin(keys(n)), torch.zeros(n, 1), keys(n))
    assert action.std().item() == pytest.approx(1 / math.sqrt(3), rel=0.05)
    assert action.min() < -0.99
    assert action.max() > 0.99
    action, agents = ddpg.act(agents, torch.zeros(n, 1), keys(n).fold(1))
    assert torch.equal(action, ddpg.policy(agents, torch.zeros(n, 1)))


def test_actions_stay_in_range_under_strong_noise() -> None:
    ddpg = DDPG(1, 3, dataclasses.replace(SMALL, warm_up=0, noise_sigma=50.0))
    action, _ = ddpg.act(ddpg.begin(keys(20)), torch.zeros(20, 1), keys(20))
    assert action.abs().max() == 1
    assert (action.abs() == 1).float().mean() > 0.9


@dataclass(frozen=True)
class Mine(Private):
    agents: Agents
    rounds: Tensor


def test_agents_are_stored_beside_other_private_state() -> None:
    ddpg, ids = DDPG(1, 2, SMALL), torch.tensor([5, 9, 2])
    store: PrivateStore[Mine] = PrivateStore()
    for part in (ids[:2], ids[2:]):
        own = Key.from_seed(3).fold(part)
        store.enrol(part, Mine(ddpg.begin(own), torch.zeros(part.numel())))
    drawn = torch.tensor([2, 5])
    mine = store.take(drawn)
    played = play(ddpg, mine.agents, Key.from_seed(3).fold(drawn), 8)
    store.commit(drawn, dataclasses.replace(mine, agents=played))
    assert difference(store.take(drawn).agents, played) == 0
    untouched = store.take(torch.tensor([9])).agents
    assert difference(untouched, ddpg.begin(Key.from_seed(3).fold(torch.tensor([9])))) == 0

    restored: PrivateStore[Mine] = PrivateStore()
    restored.load_plain(store.to_plain(), Mine(ddpg.begin(keys(1)), torch.zeros(1)))
    again = [
        play(ddpg, one.take(drawn).agents, Key.from_seed(3).fold(drawn), 4, begin=8)
        for one in (store, restored)
    ]
    assert difference(*again) == 0


@pytest.mark.parametrize("n", [1, 1000])
def test_one_agent_and_a_thousand(n: int) -> None:
    ddpg = DDPG(1, 2, SMALL)
    agents = play(ddpg, ddpg.begin(keys(n)), keys(n), 6)
    leaves = dict(tree.tensors(agents))
    assert all(leaf.shape[0] == n for leaf in leaves.values())
    assert all(bool(leaf.isfinite().all()) for leaf in leaves.values())
    first = play(ddpg, ddpg.begin(keys(1)), keys(1), 6)
    assert difference(tree.take(agents, torch.tensor([0])), first) < 1e-6


@pytest.mark.parametrize(
    "wrong",
    [
        {"critic_lr": 0.0},
        {"actor_lr": -1.0},
        {"actor_lr": math.nan},
        {"tau": 0.0},
        {"tau": 1.5},
        {"gamma": 1.0},
        {"gamma": -0.1},
        {"batch_size": 0},
        {"capacity": 0},
        {"updates": 0},
        {"warm_up": -1},
        {"hidden": (0, 3)},
        {"noise_sigma": -0.1},
        {"noise_sigma": math.inf},
        {"noise_sigma": math.nan},
        {"noise_theta": 3.0},
        {"noise_theta": -0.1},
        {"noise_decay": -1},
        {"noise_final": 1.5},
        {"noise_final": -0.5},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        DDPGSettings(**wrong)
