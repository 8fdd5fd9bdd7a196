"""Dap-FL against a naive loop over clients with looped agents, and what its rewards mean."""

import dataclasses
import math

import pytest
import torch
from tests.core.agents.looped_ddpg import LoopedAgent
from tests.core.methods.labelled_clients import (
    SECRET,
    Net,
    Softmax,
    built,
    close,
    epochs_of,
    key_of,
    labelled,
    loaded,
    run,
    samples_of,
    sgd,
    split,
    weights_of,
)

from coterie.core.agents.settings import DDPGSettings
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.dap_fl import DapFLClient, DapFLServer, DapFLSettings
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer
from coterie.core.methods.settings.fedavg import FedAvgSettings

AGENT = DDPGSettings(
    critic_lr=1e-2, actor_lr=1e-2, tau=0.1, warm_up=2, batch_size=4, hidden=(6, 5), noise_decay=0
)
LR, LR_MIN, EPOCHS, BATCH = 0.5, 0.01, 4, 3


def halves(build=Softmax, **options):
    given = {"lr": LR, "lr_min": LR_MIN, "epochs": EPOCHS, "batch_size": BATCH, "agent": AGENT}
    settings = DapFLSettings(**given | {"evaluate_every": 0} | options)
    return DapFLServer(build, settings), DapFLClient(built(build), settings)


def measured(module, samples):
    """Accuracy and bounded loss of one module."""
    if not len(samples["y"]):
        return torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        loss, accuracy = module.loss(samples), module.correct(samples).double().mean()
    return torch.stack([accuracy, 1 - torch.exp(-loss)])


def naive(build, data, client, rounds, part="valid"):
    """Round by round, client by client, agent by agent."""
    weights, agents, lasts = weights_of(built(build)), {}, {}
    for c, one in enumerate(data.ids.tolist()):
        alone = data.take(torch.tensor([c]))
        agents[c] = LoopedAgent(client.ddpg, client.enrol(alone, enrolment(one)).agents, 0)
    chosen = []
    for number in range(1, rounds + 1):
        models, picked = [], {}
        for c, one in enumerate(data.ids.tolist()):
            key, agent = key_of(one, "update", number), agents[c]
            samples, held = samples_of(data.train, c), samples_of(getattr(data, part), c)
            model = loaded(built(build), weights)
            state = measured(model, held)
            if c in lasts:
                agent.remember(*lasts[c], state)
            agent.learn(row(key.fold("learn")))
            action = agent.act(state, row(key.fold("act")))
            lr = math.exp(math.log(LR_MIN) + (action[0] + 1) / 2 * math.log(LR / LR_MIN))
            epochs = min(1 + int((action[1] + 1) / 2 * EPOCHS), EPOCHS)
            picked[c] = (lr, epochs)
            if not len(samples["y"]):
                continue
            sgd(model, epochs_of(samples, one, epochs, BATCH, key), lr)
            after = measured(model, held)
            lasts[c] = (state, action, (after[0] - after[1]) - (state[0] - state[1]))
            models.append(weights_of(model))
        weights = {k: sum(m[k] for m in models) / len(models) for k in weights}
        chosen.append(picked)
    return weights, agents, chosen


def enrolment(one):
    return SECRET.fold(torch.tensor([one])).fold("enrol")


def row(key):
    return dataclasses.replace(key, state=key.state[0])


@pytest.mark.parametrize(("build", "chunk"), [(Softmax, 3), (Net, 1), (Net, None)])
def test_equals_a_naive_loop(build, chunk):
    data, (server, client) = split(), halves(build)
    found = run(server, client, data, 4, chunk)
    weights, agents, chosen = naive(build, data, client, 4)
    close(found.state.weights, weights, 1e-10)
    kept = found.private(data.ids)
    for c, agent in agents.items():
        for name, flat in agent.flat().items():
            stacked = getattr(kept.agents.networks, name)[c]
            torch.testing.assert_close(stacked, flat, atol=1e-10, rtol=1e-10)
        assert int(kept.agents.replay.count[c]) == len(agent.memory)
    some = [c for c in range(len(data)) if data.lengths[c]]
    for journal, picked in zip(found.journals, chosen, strict=True):
        for place, name in enumerate(("lr", "epochs")):
            mean = sum(picked[c][place] for c in some) / len(some)
            assert journal.scalars[f"fed/{name}"] == pytest.approx(float(mean), rel=1e-6)


def test_agents_differ_and_stay_within_their_ranges():
    data, (server, client) = split([6] * 8), halves()
    kept = run(server, client, data, 4).private(data.ids)
    lr, epochs = client.read(kept.last.action)
    assert ((lr >= LR_MIN) & (lr <= LR)).all()
    assert ((epochs >= 1) & (epochs <= EPOCHS)).all()
    assert lr.unique().numel() == 8
    ends = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    lowest, highest = (part.tolist() for part in client.read(ends))
    assert lowest == pytest.approx([LR_MIN, LR])
    assert highest == [1, EPOCHS]


def test_a_reward_is_what_the_own_training_won():
    """By the models of round 3: the received one, and each client's own."""
    data, (server, client) = split(), halves(Net)
    before, after = run(server, client, data, 2), run(server, client, data, 3)
    kept = after.private(data.ids)
    for c in range(len(data)):
        held = samples_of(data.valid, c)
        received = measured(loaded(built(Net), before.state.weights), held)
        own = measured(loaded(built(Net), {k: v[c] for k, v in kept.personal.items()}), held)
        won = (own[0] - own[1]) - (received[0] - received[1])
        torch.testing.assert_close(kept.last.utility[c], won, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(kept.last.state[c], received, atol=1e-12, rtol=1e-12)


def test_what_is_remembered_begins_and_ends_with_received_models():
    data, (server, client) = split(), halves()
    states = []
    for rounds in (1, 2, 3):
        states.append(run(server, client, data, rounds).private(data.ids).last)
    replay = run(server, client, data, 3).private(data.ids).agents.replay
    for place in (0, 1):
        then, next_ = states[place], states[place + 1]
        expected = torch.cat([then.state, then.action, then.utility[:, None], next_.state], 1)
        some = data.lengths > 0
        assert torch.equal(replay.rows[some, place], expected[some])
    assert replay.count.tolist() == [2 if n else 0 for n in data.lengths.tolist()]


def test_training_samples_stand_in_for_missing_ones_and_may_be_chosen():
    valid = labelled([2, 0, 4], "valid")
    data = SplitSamples(labelled([5, 6, 7]), valid, labelled([1, 1, 1], "test"))
    weights = {n: w[None] for n, w in weights_of(built(Net)).items()}
    parts = {"valid": ["valid", "train", "valid"], "train": ["train"] * 3}
    for choice, measured_on in parts.items():
        _, client = halves(Net, measure_on=choice)
        found = client.state(weights, data)
        for c, part in enumerate(measured_on):
            expected = measured(built(Net), samples_of(getattr(data, part), c))
            torch.testing.assert_close(found[c], expected, atol=1e-12, rtol=1e-12)


def test_measured_on_training_samples_it_equals_a_naive_loop():
    data, (server, client) = split(), halves(measure_on="train")
    weights, _, _ = naive(Softmax, data, client, 4, "train")
    close(run(server, client, data, 4).state.weights, weights, 1e-10)


def test_with_nothing_to_choose_it_is_fedavg():
    options = {"lr": 0.1, "epochs": 2, "batch_size": 3, "weighting": "equal", "evaluate_every": 0}
    data = split()
    server, client = halves(Net, **options, lr_min=0.1, epochs_min=2)
    plain = FedAvgSettings(**options)
    expected = run(FedAvgServer(Net, plain), FedAvgClient(built(Net), plain), data, 4)
    found = run(server, client, data, 4)
    close(found.state.weights, expected.state.weights, 1e-10)
