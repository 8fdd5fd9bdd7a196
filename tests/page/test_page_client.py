"""Clients of PAGE: who fails, who has nothing, chunks, order, and what leaves a client."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.core.methods.labelled_clients import (
    KEY,
    SECRET,
    Net,
    Softmax,
    boundary_holds,
    close,
    labelled,
    reversed_ids,
    run,
    split,
)
from tests.hosted import same_both_ways
from tests.in_process import cohort_in_process
from tests.page.small_games import LENGTHS, MEASURED, game, pairs, play, settings

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.ledger import Ledger
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.protocol.journal import Journal
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors import tree
from coterie.page.experiment import Experiment
from coterie.page.messages import Stage
from coterie.page.settings import AgentOptions, GameSettings, Settings, TaskSettings, TrainSettings

each_reading = pytest.mark.parametrize("reading", ["recommended", "literal", "released"])
IDS = torch.arange(len(LENGTHS))
MANY = [5, 3, 0, 12, 7, 7, 1, 2, 4]
STAGES = 3  # in the third, agents act by what they have learnt
CHUNK = 4  # of nine clients: two chunks of four and one of a single client


def same_trees(found, expected, tolerance=0.0):
    for (path, left), (_, right) in zip(tree.tensors(found), tree.tensors(expected), strict=True):
        message = f"{path} differs"
        torch.testing.assert_close(
            left, right, atol=tolerance, rtol=tolerance, equal_nan=True, msg=message
        )


def single(data: SplitSamples) -> SplitSamples:
    """The same samples in float32."""
    return tree.map_tensors(lambda v: v.float() if v.is_floating_point() else v, data)


@pytest.mark.parametrize(
    ("reading", "build"), [("recommended", Net), ("literal", Softmax), ("released", Softmax)]
)
def test_chunks_make_no_difference(reading, build):
    whole = play(settings(reading), STAGES, split(MANY), build)
    parts = play(settings(reading), STAGES, split(MANY), build, CHUNK)
    same_trees(parts.state, whole.state, 1e-12)
    same_trees(parts.private(range(9)), whole.private(range(9)), 1e-12)


@pytest.mark.parametrize("reading", ["recommended", "released"])
def test_chunks_make_no_difference_in_single_precision(reading):
    def build():
        return Softmax().float()

    whole = play(settings(reading), STAGES, single(split(MANY)), build)
    assert whole.private([0]).agents.noise.dtype == torch.float32
    parts = play(settings(reading), STAGES, single(split(MANY)), build, CHUNK)
    close(parts.state.weights, whole.state.weights, 1e-6)


@pytest.mark.parametrize("reading", ["recommended", "literal", "released"])
def test_chunks_make_no_difference_where_scores_tie(reading):
    """Classes that a client never saw keep equal scores; the server's agent sees accuracies."""
    agent = AgentOptions(warm_up=0)
    chosen = Settings(
        reading=reading,
        rounds=3,
        data=TaskSettings(clients=3, quantity_skew=0.5),
        train=TrainSettings(epochs=2, batch_size=20),
        game=GameSettings(follower="ddpg"),
        client_agent=agent,
        server_agent=agent,
    )
    states = []
    for chunk in (None, 1):
        engine = EngineSettings(chunk=chunk, dtype="float64")
        module = FederatedRun(Experiment(replace(chosen, engine=engine)).federation())
        while not module.finished:
            module.advance()
        states.append(module.server_state)
    assert torch.equal(states[1].seen, states[0].seen)
    close(states[1].weights, states[0].weights, 1e-9)


@each_reading
def test_the_order_of_clients_makes_no_difference(reading):
    """The same clients under the same ids and keys, stored in the opposite order."""
    data, chosen = split(MANY), settings(reading)
    straight = play(chosen, STAGES, data)
    turned = reversed_ids(*game(chosen, data), data, STAGES)
    close(turned.state.weights, straight.state.weights, 1e-6)
    close({"seen": turned.state.seen}, {"seen": straight.state.seen}, 1e-6)
    same_trees(turned.private(data.ids), straight.private(data.ids), 1e-6)


@each_reading
def test_a_client_that_fails_weighs_nothing_and_its_slots_stay(reading):
    chosen, broken = settings(reading), 2
    data = split(LENGTHS)
    server, client = game(chosen, data)
    good = run(server, client, data, 3)
    bad = split(LENGTHS)
    bad.train.samples["x"][bad.train.offsets[broken]] = torch.nan
    journal = Journal()
    cohort = cohort_in_process(client, bad, good.store, SECRET, (0, 4), Ledger(), journal)
    state = server.round(good.state, cohort, KEY.fold("round", 4))
    assert journal.refused == [("update", broken, "its training diverged")]
    now = good.private([broken])
    assert now.last.utility.tolist() == now.accuracy.tolist() == [0.0]
    assert now.agents.replay.count.tolist() == [3]  # of the stages before, the last completed here
    same_trees(now.personal, {n: w[None] for n, w in good.state.weights.items()})
    assert state.seen[broken] == good.state.seen[broken]
    movers = [0, 1, 3]
    if chosen.game.follower == "ddpg":
        assert (state.seen[movers] != good.state.seen[movers]).any()
    assert list(pairs(journal, "page/lr")) == movers
    # W(t+1) lies in the span of the three models alone, with weights that sum to 1.
    own = good.private(movers).personal["head.weight"].flatten(1)
    p = torch.linalg.lstsq(
        torch.cat([own.T, torch.ones(1, 3).double()]),
        torch.cat([state.weights["head.weight"].flatten(), torch.ones(1).double()]),
    )
    residual = own.T @ p.solution - state.weights["head.weight"].flatten()
    assert residual.abs().max() < 1e-9
    assert p.solution.min() > -1e-9
    assert float(p.solution.sum()) == pytest.approx(1)


@each_reading
def test_a_model_that_cannot_be_measured_is_refused_by_name(reading):
    data = split(LENGTHS)
    data.valid.samples["x"][int(data.valid.offsets[1])] = torch.nan
    for journal in play(settings(reading), 3, data).journals:
        [(step, who, why)] = journal.refused
        assert (step, who) == ("update", 1)
        assert "local_loss" in why or "last" in why


@pytest.mark.parametrize(
    ("reading", "tune_p"),
    [("recommended", True), ("recommended", False), ("literal", True), ("released", False)],
)
def test_if_all_fail_the_model_stays(reading, tune_p):
    data = split(LENGTHS)
    data.train.samples["x"][:] = torch.nan
    chosen = settings(reading, tune_p=tune_p)
    server, client = game(chosen, data)
    found = run(server, client, data, 3)
    same_trees(found.state, server.begin(KEY))
    for journal in found.journals:
        assert journal.scalars["fed/clients"] == 0
        assert [who for _, who, _ in journal.refused] == IDS.tolist()


@each_reading
def test_an_agent_whose_training_diverged_gets_the_lowest_reward(reading):
    data, broken = split(LENGTHS), 2
    data.train.samples["x"][data.train.offsets[broken] : data.train.offsets[broken + 1]] *= 1e200
    chosen = settings(reading)
    first, second = (play(chosen, stages, data) for stages in (1, 2))
    assert first.journals[0].refused == [("update", broken, "its training diverged")]
    kept = first.private(IDS)
    assert (kept.last.utility == 0).tolist() == [False, False, True, False]
    assert kept.accuracy[broken] == 0
    memory = second.private(IDS).agents.replay
    assert memory.count.tolist() == [1] * 4
    reward = memory.rows[broken, 0, kept.last.state.shape[1] + kept.last.action.shape[1]]
    lowest = 0.0
    if reading == "recommended":  # less the utility of the model that the client received
        lowest -= 1 / (0.1 - float(kept.last.state[broken, 1].log()))
    assert float(reward) == pytest.approx(lowest, rel=1e-9)


@each_reading
def test_agents_learn_though_nobody_ever_moved_and_the_objective_is_shared(reading):
    data = split(LENGTHS)
    data.train.samples["x"] *= 1e200
    chosen = settings(reading, train={"lr": 1e120}, lr_min=1e110, reward_ratio="1:1")
    found = play(chosen, 2, data)
    assert [len(journal.refused) for journal in found.journals] == [4, 4]
    assert found.private(IDS).agents.replay.count.tolist() == [1] * 4


@each_reading
def test_only_those_drawn_play(reading):
    chosen = settings(reading, train={"participation": 0.5})
    found = play(chosen, 6)
    movers = [set(pairs(journal, "page/lr")) for journal in found.journals]
    assert {len(some) for some in movers} == {2}
    assert set().union(*movers) == {0, 1, 2, 3}
    played = [sum(c in some for some in movers) for c in range(4)]
    kept = found.private(IDS)
    assert kept.rounds.tolist() == played
    assert kept.agents.replay.count.tolist() == [n - 1 for n in played]


@each_reading
def test_an_agent_learns_nothing_of_a_server_that_it_did_not_play_with(reading):
    """Under a shared objective: u_CS is of the last stage, which it must have played in."""
    chosen = settings(reading, train={"participation": 0.5}, reward_ratio="1:1")
    found = play(chosen, 10)
    played = [set(pairs(journal, "page/lr")) for journal in found.journals]
    in_a_row = [sum(c in a and c in b for a, b in pairwise(played)) for c in range(4)]
    total = [sum(c in some for some in played) for c in range(4)]
    assert all(0 < both < times - 1 for both, times in zip(in_a_row, total, strict=True))
    assert found.private(IDS).agents.replay.count.tolist() == in_a_row


@each_reading
def test_a_client_without_validation_samples_plays_by_its_training_samples(reading):
    valid = labelled([4, 0, 3, 2], "valid")
    data = SplitSamples(labelled(LENGTHS), valid, labelled([1] * 4, "test"))
    found = play(settings(reading), 3, data)
    assert not found.journals[-1].refused
    assert found.private([1]).agents.replay.count.tolist() == [2]
    utility = pairs(found.journals[-1], "page/reward_clients")[1]
    on_train = SplitSamples(data.train, data.train, data.test)
    _, client = game(settings(reading), data)
    alone = tree.take(found.private([1]).personal, torch.tensor([0]))
    loss = client.measure(alone, on_train.take(torch.tensor([1]))).loss
    assert utility == pytest.approx(float(client.utility(loss)), rel=1e-6)


@each_reading
def test_a_client_without_samples_changes_nothing(reading):
    """It neither weighs nor counts in a mean, and its agent has lived through nothing."""
    lengths = [5, 3, 0, 6, 4]
    data = SplitSamples(labelled(lengths), labelled(lengths, "valid"), labelled(lengths, "test"))
    chosen = settings(reading, MEASURED, reward_ratio="1:1")
    found = play(chosen, 3, data)
    assert not found.journals[-1].refused
    assert found.private([2]).agents.replay.count.tolist() == [0]
    assert all(2 not in pairs(journal, "page/lr") for journal in found.journals)
    assert found.state.seen[2] == 0
    if reading == "recommended":  # an agent's network has a weight for every slot
        some = torch.tensor([0, 1, 3, 4])
        without = play(chosen, 3, data.take(some))
        close(without.state.weights, found.state.weights, 1e-12)
        for journal, expected in zip(found.journals, without.journals, strict=True):
            for name in ("page/reward_server", "page/reward_clients", "fed/loss"):
                assert journal.scalars[name] == pytest.approx(expected.scalars[name], rel=1e-9)


@pytest.mark.parametrize(
    ("reading", "lengths"),
    [
        *(("recommended", lengths) for lengths in ([6], [1], [0], [0, 0])),
        *(("literal", lengths) for lengths in ([6], [0, 0])),
        *(("released", lengths) for lengths in ([1], [0])),
    ],
)
def test_one_client_or_nobody(reading, lengths):
    data = split(lengths)
    found = play(settings(reading, MEASURED), 4, data)
    assert all(value.isfinite().all() for value in found.state.weights.values())
    if max(lengths) > 0:
        scalars = found.journals[-1].scalars
        assert scalars["page/weights_entropy"] == pytest.approx(0, abs=1e-12)
        own = found.private([0]).personal  # p = 1: the server's model is the client's
        close(found.state.weights, {k: v[0] for k, v in own.items()}, 1e-12)


@pytest.mark.parametrize("reading", ["recommended", "released"])  # both kinds of follower
def test_a_thousand_clients(reading):
    lengths = [1 + c % 3 for c in range(1000)]
    agent = replace(settings().client_agent, capacity=4)
    found = play(settings(reading, agent=agent), 2, split(lengths))
    scalars = found.journals[-1].scalars
    assert scalars["fed/clients"] == 1000
    assert 0 < scalars["page/weights_entropy"] <= torch.tensor(1000.0).log().item() + 1e-6
    assert found.private(range(1000)).agents.replay.count.unique().tolist() == [1]


@pytest.mark.parametrize(
    ("reading", "ratio", "build"),
    [
        ("recommended", None, Softmax),
        ("recommended", "1:1", Net),
        ("literal", "1:1", Softmax),
        ("released", "1:1", Softmax),
    ],
)
def test_the_boundary_holds(reading, ratio, build):
    chosen = settings(reading, reward_ratio=ratio)
    data = split(LENGTHS)
    server, client = game(chosen, data, build)
    found = run(server, client, data, 4)  # agents choose by what they have learnt from stage 3 on
    state = found.state
    steps = {
        "update": Stage(state.weights, state.utility, 5),  # the next, of which the agents learn
        "evaluate": GlobalModel(state.weights),
    }
    boundary_holds(client, steps, found.private(data.ids), data)


@each_reading
def test_a_process_answers_the_same_bits(reading, tmp_path):
    data = split([5, 0, 4])
    server, client = game(settings(reading), data)
    weights = server.begin(KEY).weights
    down = Stage(weights, torch.tensor(0.5, dtype=torch.float64), 3)
    same_both_ways(tmp_path, client, data, [("update", down)] * 4, SECRET)
