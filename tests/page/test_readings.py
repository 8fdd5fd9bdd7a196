"""The readings, and which experiences each of them makes."""

import itertools

import pytest
import torch
from tests.core.methods.labelled_clients import (
    Net,
    Softmax,
    built,
    loaded,
    samples_of,
    split,
)
from tests.page.looped_page import quality
from tests.page.small_games import HELD, LENGTHS, pairs, play, settings

from coterie.core.agents.settings import DDPGSettings
from coterie.page.readings import choices, resolve
from coterie.page.settings import AgentOptions, GameSettings, Settings, TaskSettings

IDS = torch.arange(len(LENGTHS))


def test_open_choices_are_filled_and_the_users_stay():
    for reading in ("recommended", "literal", "released", "decoupled"):
        chosen = resolve(Settings(reading=reading))
        for name, value in choices(Settings(reading=reading)).items():
            assert getattr(chosen.game, name) == value
            assert value is not None
    mine = resolve(Settings(reading="literal", game=GameSettings(utility="bounded")))
    assert (mine.game.utility, mine.game.follower) == ("bounded", "ddpg")
    assert resolve(mine) == mine


def test_the_reading_decoupled_waits_longer_for_its_rest_unless_told_otherwise():
    assert resolve(Settings()).game.patience == 50
    assert resolve(Settings(reading="decoupled")).game.patience == 100
    told = GameSettings(patience=50)
    assert resolve(Settings(reading="decoupled", game=told)).game.patience == 50


def test_released_agents_explore_as_the_public_code():
    chosen = resolve(Settings(reading="released"))
    assert (chosen.client_agent.noise_dt, chosen.client_agent.init) == (0.01, "fan_out")
    assert chosen.server_agent.noise_sigma == 0


def test_recommended_leaders_begin_near_the_largest_choice_unless_told_otherwise():
    chosen = resolve(Settings()).client_agent
    assert (chosen.start, chosen.gamma, chosen.warm_up) == (0.8, 0.0, 0)
    mine = resolve(Settings(client_agent=AgentOptions(warm_up=7, gamma=0.99))).client_agent
    # 0.99 is what an agent has by itself, and is chosen all the same.
    assert (mine.start, mine.gamma, mine.warm_up) == (0.8, 0.99, 7)
    assert resolve(Settings()).server_agent.ddpg() == DDPGSettings()


def test_other_readings_have_the_agents_of_the_public_code_for_the_task():
    assert resolve(Settings(reading="literal")).client_agent.ddpg() == DDPGSettings()
    task = TaskSettings(name="tiny-imagenet-200")
    for reading in ("literal", "released"):
        found = resolve(Settings(reading=reading, data=task))
        for agent in (found.client_agent, found.server_agent):
            assert (agent.critic_lr, agent.actor_lr, agent.tau) == (0.05, 0.005, 0.05)
    own = resolve(Settings(reading="literal", data=task, client_agent=AgentOptions(tau=0.2)))
    assert (own.client_agent.tau, own.server_agent.tau) == (0.2, 0.05)
    recommended = resolve(Settings(data=task))
    assert recommended.client_agent == resolve(Settings()).client_agent
    assert recommended.server_agent.critic_lr == 0.05  # where the follower is an agent


def through(reading, stages, build=Net, **options):
    """Runs of 1, 2, … stages, each the beginning of the next."""
    chosen = settings(reading, **options)
    return [play(chosen, t, build=build) for t in range(1, stages + 1)]


def own_accuracies(run_):
    data, kept = split(LENGTHS), run_.private(IDS).personal
    models = [loaded(built(Net), {k: v[c] for k, v in kept.items()}) for c in IDS.tolist()]
    return torch.tensor(
        [quality(m, samples_of(data.valid, c))[1] for c, m in enumerate(models)]
    ).double()


def received(run_):
    """Accuracy and likelihood of the model that follows from a run, at each client."""
    data, model = split(LENGTHS), loaded(built(Net), run_.state.weights)
    found = torch.tensor([quality(model, samples_of(data.valid, c)) for c in IDS.tolist()]).double()
    return found[:, 1], (-found[:, 0]).exp()


def test_recommended_next_states_are_after_the_action_and_the_answer():
    first, second, third = through("recommended", 3)
    last = first.private(IDS).last
    accuracy, likelihood = received(first)  # of W(2), which both have made
    expected = torch.stack([accuracy, likelihood, own_accuracies(first)], 1)
    stored = second.private(IDS).agents.replay.rows[:, 0]
    torch.testing.assert_close(stored[:, :3], last.state, atol=0, rtol=0)
    torch.testing.assert_close(stored[:, 3:5], last.action, atol=0, rtol=0)
    torch.testing.assert_close(stored[:, 6:], expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(third.private(IDS).agents.replay.rows[:, 1, :3], stored[:, 6:])


def test_literal_states_are_the_own_models_accuracy():
    first, second, _ = through("literal", 3)
    stored = second.private(IDS).agents.replay.rows[:, 0]
    assert stored[:, 0].tolist() == [0.0] * 4  # nothing is known before the first stage
    torch.testing.assert_close(stored[:, -1], own_accuracies(first), atol=1e-6, rtol=1e-6)


def test_released_states_are_the_received_models_and_actions_are_squashed():
    first, second, _ = through("released", 3)
    stored = second.private(IDS).agents.replay.rows[:, 0]
    torch.testing.assert_close(stored[:, -1], received(first)[0], atol=1e-6, rtol=1e-6)
    rates, epochs = (pairs(first.journals[0], f"page/{n}") for n in ("lr", "epochs"))
    assert stored[:, 1].tolist() == pytest.approx(list(rates.values()))
    assert stored[:, 2].floor().tolist() == list(epochs.values())


def test_released_weights_are_chosen_before_the_clients_move():
    """By the accuracies of the stage before; the state that follows is of this stage's models."""
    runs = through("released", 3)
    for before, now in itertools.pairwise(runs):
        last = now.state.agent.last
        torch.testing.assert_close(last.state[0], before.state.seen, atol=0, rtol=0)
        torch.testing.assert_close(last.action[0], now.state.agent.p, atol=0, rtol=0)
    stored = runs[2].state.agent.agents.replay.rows[0, 1]
    torch.testing.assert_close(stored[-4:], runs[1].state.seen, atol=0, rtol=0)


def test_literal_weights_answer_to_the_models_of_the_stage():
    runs = through("literal", 3)
    for now in runs:
        torch.testing.assert_close(now.state.agent.last.state[0], now.state.seen, atol=0, rtol=0)
        raw = now.state.agent.last.action[0]
        assert (raw.abs() <= 1).all()
        assert not torch.equal(raw, now.state.agent.p)


def test_seen_are_the_accuracies_of_the_clients_models_on_the_servers_samples():
    [first] = through("literal", 1)
    kept = first.private(IDS).personal
    for c in IDS.tolist():
        model = loaded(built(Net), {k: v[c] for k, v in kept.items()})
        assert float(first.state.seen[c]) == pytest.approx(quality(model, HELD)[1])


def test_the_literal_follower_can_win_by_a_single_client():
    """1/Σ p_i f_i is best with all weight on the least loss (the paper's utility as printed)."""
    found = play(settings("literal"), 3, build=Softmax)
    u = torch.tensor(list(pairs(found.journals[-1], "page/reward_clients").values()))
    assert found.journals[-1].scalars["page/reward_server"] < float(u.max())
