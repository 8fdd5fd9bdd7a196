"""The certificate of the reading decoupled: that a branch touches nobody is played in full."""

from dataclasses import replace

import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.methods.kit.branch import Branch
from coterie.core.methods.settings.fedavg import BranchOptions
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.page.algorithm import onto
from coterie.page.certificate import decoupled
from coterie.page.certificate.decoupled import DecoupledGame
from coterie.page.certificate.game import LEARNED, Deviation
from coterie.page.certificate.of_run import before_learning, certify_run
from coterie.page.experiment import Experiment
from coterie.page.settings import (
    CertificateSettings,
    GameSettings,
    Settings,
    TaskSettings,
    TrainSettings,
)

N, GAMMA = 4, 0.9
KEY = Key.from_seed(3)
QUICK = CertificateSettings(grid=3, horizon=1, screen_seeds=1, seeds=5, off_path=0, batch=64)
FINE = BranchOptions(epochs=1, rates=(1.0, 0.1), shares=6)
COARSE = BranchOptions(epochs=1, rates=(1.0, 0.1), shares=3)


def played(rounds=3, branch=COARSE, **game) -> FederatedRun:
    settings = Settings(
        reading="decoupled",
        rounds=rounds,
        data=TaskSettings(clients=N),
        train=TrainSettings(epochs=2, batch_size=75),
        game=GameSettings(**game),
        branch=branch,
    )
    module = FederatedRun(Experiment(settings).federation())
    while not module.finished:
        module.advance()
    return module


@pytest.fixture(scope="module")
def run() -> FederatedRun:
    """Which no test changes."""
    return played()


def in_full(module, horizon, leader=None, action=None, answer=None):
    """Discounted utilities, by the halves of the run themselves, stage by stage.

    Nothing is taken over from another play: what a deviation changes is found out.
    """
    client, server = module.federation.client, module.federation.server
    state, cohort = module.server_state, module.newest_cohort()
    mine, data = module.store.take(cohort.ids), module.newest_data
    total, best = torch.zeros(N + 1, dtype=torch.float64), Branch.best
    for stage in range(horizon):
        keys = KEY.fold("stage", stage).fold(data.ids)

        def forced(self, received, sent, data, key, first=stage == 0):
            found = best(self, received, sent, data, key)
            if leader is None or not first:
                return found
            share, lr = (value.expand(len(data)) for value in action)
            other = self.played(received, sent, data, key, share, lr)
            return tree.where_rows(torch.arange(N) == leader, other, found)

        client.branch.best = forced.__get__(client.branch)
        down = server.stage(state, stage)
        move, mine = client.update(down, mine, data, keys)
        models = {n: state.weights[n] + change for n, change in move.change.items()}
        p = server.policy(state.agent, models, state.seen)
        p = onto(answer if answer is not None and stage == 0 else p)
        weights = {
            n: w + torch.tensordot(p.to(w.dtype), move.change[n], 1)
            for n, w in state.weights.items()
        }
        control = {n: c + move.control[n].mean(0) for n, c in state.control.items()}
        quality = server.evaluator.of_models(
            {n: w[None] for n, w in weights.items()}, server.samples.valid
        )
        own = torch.cat([move.local_loss.double(), quality.loss.double()])
        total += GAMMA**stage / (own + 0.1)
        start = weights
        if server.game.drift == "dynamic":
            start = {n: w - control[n] / server.game.alpha for n, w in weights.items()}
        state = replace(state, weights=start, control=control)
    del client.branch.best
    return total


DEVIATIONS = [(0, (0.0, 0.0)), (1, (1.0, 0.0)), (2, (0.5, 0.05)), (3, (1.0, 0.1))]


@pytest.mark.parametrize("drift", [{"drift": "control"}, {"drift": "dynamic", "alpha": 0.01}])
def test_plays_are_what_the_halves_of_the_run_play(drift):
    """Side by side, with one course of W for all leaders; and alone, each from the begin."""
    module = played(**drift)
    game = DecoupledGame(module)
    actions = [torch.tensor(action, dtype=torch.float64) for _, action in DEVIATIONS]
    answer = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    tried = [LEARNED, Deviation(answer=answer)]
    tried += [Deviation(who, a) for (who, _), a in zip(DEVIATIONS, actions, strict=True)]
    found = game.payoffs(tried, 3, GAMMA, KEY)
    expected = [in_full(module, 3), in_full(module, 3, answer=answer)]
    expected += [
        in_full(module, 3, who, a) for (who, _), a in zip(DEVIATIONS, actions, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)
    moved = 0
    for (who, _), payoffs in zip(DEVIATIONS, expected[2:], strict=True):
        others = torch.arange(N + 1) != who
        assert torch.equal(payoffs[others], expected[0][others])  # to the bit
        moved += int(payoffs[who] != expected[0][who])
    assert moved >= 3  # one may be what the policy plays


def test_a_stage_pays_what_its_action_gives(run):
    game = DecoupledGame(run)
    actions = torch.tensor([[0.3, 0.0], [1.0, 0.02], [0.0, 0.0], [0.6, 0.1]], dtype=torch.float64)
    alone = game.stage_payoffs(actions, KEY)
    for who in range(N):
        found = game.payoffs([Deviation(who, actions[who])], 1, GAMMA, KEY)[0, who]
        assert float(found) == pytest.approx(float(alone[who]), rel=1e-6)


def test_candidates_lie_between_those_of_the_policy_too(run):
    game = DecoupledGame(run)
    found = game.candidates(4)
    assert len(found) == len(found.unique(dim=0)) == 1 + 3 * 5
    assert found[:, 0].unique().tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    rates = found[:, 1].unique().tolist()
    assert rates == pytest.approx([0, 0.001, 0.001 * 100 ** (1 / 3), 0.001 * 100 ** (2 / 3), 0.1])
    only_sent = DecoupledGame(played(rounds=1, branch=BranchOptions(epochs=0))).candidates(4)
    assert only_sent[:, 1].tolist() == [0.0] * 4
    assert game.described(found[-1]) == pytest.approx({"share": 1.0, "lr": 0.1})


def test_leaders_have_no_dilemma_and_one_that_chooses_badly_is_found(monkeypatch):
    module = played(branch=FINE)
    good = certify_run(module, QUICK, progress=False)
    assert len(good.leaders) == N
    assert good.relative_epsilon < QUICK.tolerance
    assert not any(why.startswith("leader") for why in good.reasons)

    def as_received(self, received, sent, data, key):
        nothing = torch.zeros(len(data), dtype=torch.float64)
        return self.measured(received, received, data, nothing, 0.0)

    monkeypatch.setattr(Branch, "best", as_received)
    bad = certify_run(module, QUICK, progress=False)
    assert not bad.holds
    assert any(why.startswith("leader") for why in bad.reasons)
    assert bad.relative_epsilon > 0.1


@pytest.mark.parametrize(
    ("game", "learnt"),
    [
        ({}, False),
        ({"tune_p": False}, True),
        ({"follower": "ddpg"}, False),
        ({"follower": "ddpg"}, True),
    ],
)
def test_it_can_be_certified_before_its_first_round_and_with_every_follower(game, learnt):
    module = played(rounds=1, **game)
    run = module if learnt else before_learning(module)
    quick = replace(QUICK, grid=2, seeds=1, horizon=2, leaders=1)
    found = certify_run(run, quick, progress=False)
    assert found.follower.gain.known
    assert list(found.leaders[0].learned) == ["share", "lr"]


def test_the_present_stage_is_trained_few_times_a_seed_however_many_seeds_there_are(
    run, monkeypatch
):
    trained, whole = [], DecoupledGame._present

    def present(self, key):
        trained.append(key)
        return whole(self, key)

    monkeypatch.setattr(DecoupledGame, "_present", present)
    monkeypatch.setattr(decoupled, "_KEPT", 2)
    seeds = 4
    certify_run(run, replace(QUICK, grid=2, seeds=seeds, leaders=2), progress=False)
    # Only the leaders' fresh seeds come back, for what a deviation gives in its stage alone.
    assert len(trained) == len(set(trained)) + seeds


def test_without_a_branch_there_is_nothing_to_certify():
    with pytest.raises(UserError, match="nothing to choose"):
        certify_run(played(rounds=1, branch=BranchOptions(use=False)), QUICK, progress=False)
