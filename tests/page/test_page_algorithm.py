"""Whole stages of the game against a plain re-computation, in each reading."""

import pytest
import scipy.optimize
import torch
from tests.core.methods.labelled_clients import Net, Softmax, built, close, run, split
from tests.page.looped_page import LoopedPage
from tests.page.small_games import HELD, LENGTHS, game, pairs, play, settings

from coterie.page.answer import best_response, mixture_of
from coterie.page.settings import GameSettings

READINGS = ("recommended", "literal", "released")
each_reading = pytest.mark.parametrize("reading", READINGS)
STAGES = 5


@each_reading
@pytest.mark.parametrize(("build", "ratio"), [(Softmax, None), (Softmax, "10:1"), (Net, "1:10")])
def test_stages_equal_a_plain_loop(reading, ratio, build):
    chosen, data = settings(reading, reward_ratio=ratio), split(LENGTHS)
    server, client = game(chosen, data, build)
    found = run(server, client, data, STAGES)
    plain = LoopedPage(chosen, server, client, data, build)
    for t, journal in enumerate(found.journals, 1):
        stage = plain.play(t)
        assert float(stage.p.sum()) == pytest.approx(1, abs=1e-9)
        assert float(stage.p.min()) >= 0
        scalars = journal.scalars
        assert scalars["page/reward_server"] == pytest.approx(stage.u_server, rel=1e-8)
        mean = sum(stage.u_clients) / len(data)
        assert scalars["page/reward_clients"] == pytest.approx(mean, rel=1e-6)
        entropy = float(torch.special.entr(stage.p).sum())
        assert scalars["page/weights_entropy"] == pytest.approx(entropy, rel=1e-6)
        ids = data.ids.tolist()
        for name, values in (
            ("page/lr", stage.lr),
            ("page/epochs", stage.epochs),
            ("page/reward_clients", stage.u_clients),
        ):
            assert pairs(journal, name) == pytest.approx(dict(zip(ids, values, strict=True)))
    close(found.state.weights, plain.weights, 1e-8)
    assert_agents_alike(found, plain)


def assert_agents_alike(found, plain):
    """Networks, and every experience: state, action, reward and next state of one stage."""
    stacked = [(found.private(plain.data.ids).agents, number) for number in range(plain.n)]
    loops = list(plain.agents)
    if plain.follower is not None:
        stacked.append((found.state.agent.agents, 0))
        loops.append(plain.follower)
    for (agents, number), looped in zip(stacked, loops, strict=True):
        for name, flat in looped.flat().items():
            mine = getattr(agents.networks, name)[number]
            torch.testing.assert_close(mine, flat, atol=1e-6, rtol=1e-6)
        count = int(agents.replay.count[number])
        assert count == len(looped.memory) == STAGES - 1
        for place, (state, action, reward, following) in enumerate(looped.memory):
            expected = torch.cat([state, action, reward.reshape(1), following])
            stored = agents.replay.rows[number, place]
            torch.testing.assert_close(stored, expected, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("evenness", [0.0, 0.05, 1.0])
def test_the_follower_answers_best(evenness):
    """No other weights are better on D_CS by more than the tolerance: scipy finds none."""
    models = {
        name: torch.randn(6, *value.shape, dtype=torch.float64, generator=_generator())
        for name, value in built(Softmax).named_parameters()
    }
    mixture = mixture_of(built(Softmax), models, HELD)

    def loss(p):
        uneven = 6 * sum(one**2 for one in p) - 1
        return mixture.slope(torch.tensor(p))[0] + evenness * uneven / 2

    start = [1 / 6] * 6
    simplex = {"type": "eq", "fun": lambda p: sum(p) - 1}
    best = scipy.optimize.minimize(loss, start, bounds=[(0, 1)] * 6, constraints=[simplex])
    game = GameSettings(steps=200, evenness=evenness)
    found = best_response(built(Softmax), models, HELD, game)
    assert float(found.sum()) == pytest.approx(1)
    assert best.fun - 1e-6 <= loss(found.tolist()) <= best.fun + 1e-3
    assert loss(found.tolist()) < loss(start)


def test_a_high_price_of_uneven_weights_makes_them_equal():
    """The price is τ/2 (N Σ p_i² - 1); the higher τ, the nearer the answer to equal weights."""
    models = {
        name: torch.randn(6, *value.shape, dtype=torch.float64, generator=_generator())
        for name, value in built(Softmax).named_parameters()
    }
    spread = []
    for evenness in (0.0, 0.1, 1.0, 1e4):
        game = GameSettings(steps=200, evenness=evenness)
        found = best_response(built(Softmax), models, HELD, game)
        spread.append(float((found - 1 / 6).square().sum()))
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 1e-6 < spread[0]


def _generator():
    return torch.Generator().manual_seed(5)


@each_reading
@pytest.mark.parametrize("tuned", [("tune_lr",), ("tune_epochs",), ("tune_p",), ()])
def test_what_is_switched_off_stays(reading, tuned):
    off = dict.fromkeys(("tune_lr", "tune_epochs", "tune_p"), False) | dict.fromkeys(tuned, True)
    chosen = settings(reading, **off)
    found = play(chosen, 4)
    if not tuned:
        assert "page/lr" not in found.journals[0].scalars
        return
    for journal in found.journals:
        rates = set(pairs(journal, "page/lr").values())
        epochs = set(pairs(journal, "page/epochs").values())
        entropy = journal.scalars["page/weights_entropy"]
        assert ("tune_lr" in tuned) == (rates != {chosen.train.lr})
        assert ("tune_epochs" in tuned) or epochs == {chosen.train.epochs}
        uniform = float(torch.tensor(float(len(LENGTHS))).log())
        assert ("tune_p" in tuned) == (entropy != pytest.approx(uniform, rel=1e-6))
    if off["tune_epochs"]:
        seen = {e for journal in found.journals for e in pairs(journal, "page/epochs").values()}
        assert len(seen) > 1


@pytest.mark.parametrize("follower", ["ddpg", "best-response"])
def test_shared_rewards_reach_the_agents_without_tuned_weights(follower):
    """The clients' objective has the server's part also where the server chooses nothing."""
    chosen = settings(tune_p=False, reward_ratio="1:1", follower=follower)
    found = play(chosen, 4)
    assert found.private([0, 1, 2, 3]).agents.replay.count.tolist() == [3] * 4
    assert found.state.utility.isfinite()


@pytest.mark.parametrize("ratio", ["10:1", "1:10", "1:0"])
def test_a_ratio_cannot_reach_the_weights_but_by_the_leaders_agents(ratio):
    """A best response never sees it: with leaders that have no choice no bit of W depends on it."""
    fixed = {"tune_lr": False, "tune_epochs": False}
    plain, biased = (
        play(settings(**fixed, reward_ratio=one), STAGES).state for one in (None, ratio)
    )
    close(biased.weights, plain.weights, 0.0)
