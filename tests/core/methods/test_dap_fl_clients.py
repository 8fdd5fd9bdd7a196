"""Clients of Dap-FL: who fails, who has nothing, what leaves them, what their agents learn."""

import dataclasses

import pytest
import torch
from tests.core.methods.labelled_clients import (
    KEY,
    SECRET,
    Headless,
    Net,
    boundary_holds,
    each_chunk,
    refused_alone,
    run,
    split,
)
from tests.core.methods.test_dap_fl import AGENT, halves
from tests.hosted import same_both_ways

from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError
from coterie.core.methods.dap_fl import DapFLSettings
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.tensors import tree


@each_chunk
def test_an_agent_whose_training_diverges_learns_of_it_and_nobody_else_does(chunk):
    data, (server, client), broken = split(), halves(Net), 3
    found, without = refused_alone(server, client, data, broken, 3, chunk)
    for journal, alone in zip(found.journals, without.journals, strict=True):
        assert journal.refused == [("update", broken, "its training diverged")]
        assert journal.scalars == pytest.approx(alone.scalars, rel=1e-12)
    kept = found.private([broken])
    assert kept.rounds.tolist() == [3]
    assert kept.agents.replay.count.tolist() == [2]  # the third round is completed in the fourth
    received = run(server, client, data, 2, chunk).state.weights
    for name, value in kept.personal.items():
        assert torch.equal(value[0], received[name]), name


def test_divergence_has_the_lowest_reward_and_changes_the_agent():
    data, broken = split(), 3
    data.train.samples["x"][data.train.offsets[broken] : data.train.offsets[broken + 1]] *= 1e200
    eager = dataclasses.replace(AGENT, warm_up=1, batch_size=1)
    server, client = halves(lr=1e120, lr_min=1e110, agent=eager)
    first, third = (run(server, client, data, rounds) for rounds in (1, 3))
    last = first.private([broken]).last
    accuracy, loss = last.state[0].tolist()
    assert float(last.utility) == pytest.approx(-1 - (accuracy - loss), abs=1e-12)
    assert float(last.utility) < -0.2
    then = third.private([broken])
    n = last.state.shape[1] + last.action.shape[1]
    assert float(then.agents.replay.rows[0, 0, n]) == float(last.utility)
    networks = (dict(tree.tensors(one.private([broken]).agents.networks)) for one in (first, third))
    before, after = networks
    assert any(not torch.equal(before[path], after[path]) for path in before)
    assert not torch.equal(then.last.action, last.action)


def test_a_client_with_broken_validation_samples_is_refused_by_name():
    data, (server, client) = split(), halves(Net)
    data.valid.samples["x"][int(data.valid.offsets[5])] = torch.nan
    found = run(server, client, data, 2)
    for journal in found.journals:
        [(step, who, why)] = journal.refused
        assert (step, who) == ("update", 5)
        assert "private state 'last" in why


def test_a_module_without_accuracies_is_tuned_by_its_loss():
    data, (server, client) = split(), halves(Headless, lr=0.05)
    found = run(server, client, data, 4)
    kept = found.private(data.ids)
    assert kept.last.state[:, 0].tolist() == [0.0] * len(data)
    assert kept.last.utility[data.lengths > 0].abs().min() > 0
    assert found.journals[-1].scalars["fed/loss"] < found.journals[0].scalars["fed/loss"]


@pytest.mark.parametrize("lengths", [[0, 0], [4], [1] * 60])
def test_nobody_or_one_or_many(lengths):
    data, (server, client) = split(lengths), halves()
    found = run(server, client, data, 4)
    assert all(value.isfinite().all() for value in found.state.weights.values())
    some = sum(n > 0 for n in lengths)
    assert found.private(data.ids).agents.replay.count.sum() == 3 * some
    assert ("fed/lr" in found.journals[0].scalars) == bool(some)


def test_the_boundary_holds():
    data, (server, client) = split(), halves(Net)
    found = run(server, client, data, 4)
    down = GlobalModel(found.state.weights)
    steps = {"update": down, "evaluate": down}
    boundary_holds(client, steps, found.private(data.ids), data)


def test_an_agent_learns_that_a_larger_rate_wins_more():
    """Few steps on all training samples: the larger the rate, the better the model fits them."""
    agent = DDPGSettings(
        critic_lr=1e-2, actor_lr=2e-3, tau=0.05, gamma=0.0, warm_up=20, noise_decay=60, updates=4
    )
    options = {"lr": 0.3, "epochs": 1, "batch_size": None, "measure_on": "train", "agent": agent}
    server, client = halves(**options)
    data = split([12] * 6)
    learnt = run(server, client, data, 20)
    mine, start = learnt.private(data.ids), server.begin(KEY).weights
    down, taken = GlobalModel(start), []
    for number in range(80):  # the same poor model again and again
        key = SECRET.fold(data.ids).fold("again", number)
        up, mine = client.update(down, mine, data, key)
        taken.append(up.lr)
    assert torch.stack(taken[:5]).mean() < 0.15
    assert torch.stack(taken[-5:]).mean() > 0.2


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"lr_min": 0.0}, "lr_min"),
        ({"lr": 0.1, "lr_min": 0.2}, "'lr_min' 0.2 is above the most, 'lr' 0.1"),
        ({"epochs": 2, "epochs_min": 3}, "'epochs_min' 3 is above the most, 'epochs' 2"),
        ({"epochs_min": 0}, "epochs_min"),
    ],
)
def test_settings_are_checked(wrong, name):
    with pytest.raises(UserError, match=name):
        DapFLSettings(**wrong)


def test_the_defaults_are_pages():
    agent = DapFLSettings().agent
    assert (agent.critic_lr, agent.actor_lr, agent.tau) == (1e-3, 1e-4, 1e-3)
    assert agent.noise_decay == 0
    assert DapFLSettings().weighting == "equal"


def test_a_process_answers_the_same_bits(tmp_path):
    (server, client), data = halves(), split([5, 0, 4])
    down = GlobalModel(server.begin(KEY).weights)
    same_both_ways(tmp_path, client, data, [("update", down)] * 4, SECRET)
