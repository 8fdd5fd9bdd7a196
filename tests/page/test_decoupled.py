"""The reading decoupled against plain loops, and that a branch touches nobody."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import (
    KEY,
    Net,
    Softmax,
    boundary_holds,
    built,
    close,
    epochs_of,
    key_of,
    labelled,
    reversed_ids,
    run,
    samples_of,
    split,
)
from tests.page.small_games import HELD, LENGTHS, game, pairs, settings

from coterie.core.errors import UserError
from coterie.core.methods.kit.model_client import GlobalModel
from coterie.core.methods.settings.branch import BranchOptions
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.page.decoupled.messages import ControlledStage
from coterie.page.experiment import Experiment
from coterie.page.game.answer import best_response
from coterie.page.readings import resolve
from coterie.page.settings.run import GameSettings, Settings, TaskSettings, TrainSettings

ROUNDS = 3
BRANCH = BranchOptions(use=True, shares=4, epochs=2, rates=(1.0, 0.25))


def decoupled(branch=BRANCH, train=None, **changes):
    return replace(settings("decoupled", train, **changes), branch=branch)


def gradients(module, batch):
    names, values = zip(*module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(module.loss(batch), values), strict=True))


def loaded(build, weights):
    module = built(build)
    module.load_state_dict(weights)
    return module


def trained(build, weights, batches, lr, correction=None):
    """Plain SGD; a correction is added to every gradient."""
    now, count = {name: w.clone() for name, w in weights.items()}, 0
    for batch in batches:
        g = gradients(loaded(build, now), batch)
        extra = correction or {name: 0.0 for name in g}
        now = {name: now[name] - lr * (g[name] + extra[name]) for name in now}
        count += 1
    return now, count


def loss_of(build, weights, samples):
    with torch.no_grad():
        return float(loaded(build, weights).loss(samples))


class Plain:
    """The game in plain words: one client after the other, one branch after the other."""

    def __init__(self, chosen, server, data, build):
        self.chosen, self.data, self.build = chosen, data, build
        self.weights = server.begin(KEY).weights
        zero = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.control, self.own = zero, [zero for _ in range(len(data))]

    def play(self, number):
        train, lam = self.chosen.train, self.chosen.game.generality
        sent, controls, branches = [], [], []
        for i in range(len(self.data)):
            samples, key = samples_of(self.data.train, i), key_of(i, "update", number)
            correction = {n: lam * (c - self.own[i][n]) for n, c in self.control.items()}
            batches = epochs_of(samples, i, train.epochs, train.batch_size, key)
            w, steps = trained(self.build, self.weights, batches, train.lr, correction)
            # What was made in K steps is their mean gradient and the correction.
            mean = {n: (self.weights[n] - w[n]) / (steps * train.lr) - correction[n] for n in w}
            sent.append(w)
            controls.append(mean)
            branches.append(self.branch(i, w, samples, key))
        stacked = {n: torch.stack([w[n] for w in sent]) for n in self.weights}
        p = torch.full((len(sent),), 1 / len(sent), dtype=torch.float64)
        if self.chosen.game.tune_p:
            p = best_response(built(self.build), stacked, HELD, self.chosen.game)
        self.weights = {n: torch.tensordot(p, w, 1) for n, w in stacked.items()}
        self.own = controls
        self.control = {n: torch.stack([c[n] for c in controls]).mean(0) for n in self.control}
        return branches

    def branch(self, i, sent, samples, key):
        options, train = self.chosen.branch, self.chosen.train
        held = samples_of(self.data.valid, i)
        sources = {0.0: sent}
        for rate in options.rates if options.epochs else ():
            again = epochs_of(samples, i, options.epochs, train.batch_size, key.fold("branch"))
            sources[train.lr * rate], _ = trained(self.build, self.weights, again, train.lr * rate)
        tried = [
            (loss_of(self.build, mixed, held), share, lr, mixed)
            for lr, u in sources.items()
            for share in torch.linspace(0, 1, options.shares).tolist()
            for mixed in [{n: share * u[n] + (1 - share) * w for n, w in self.weights.items()}]
        ]
        return min(tried, key=lambda one: one[0])


@pytest.mark.parametrize("build", [Softmax, Net])
@pytest.mark.parametrize("generality", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tune_p", [True, False])
def test_stages_equal_a_plain_loop(build, generality, tune_p):
    chosen, data = decoupled(generality=generality, tune_p=tune_p), split(LENGTHS)
    server, client = game(chosen, data, build)
    found, plain = run(server, client, data, ROUNDS), Plain(chosen, server, data, build)
    for number, journal in enumerate(found.journals, 1):
        best = plain.play(number)
        shares, rates = pairs(journal, "page/branch_share"), pairs(journal, "page/branch_lr")
        utilities = pairs(journal, "page/reward_clients")
        for i, (loss, share, lr, _) in enumerate(best):
            assert shares[i] == pytest.approx(share, abs=1e-6)
            assert rates[i] == pytest.approx(lr if share else 0.0, abs=1e-6)
            assert utilities[i] == pytest.approx(1 / (loss + 0.1), rel=1e-6)
    close(found.state.weights, plain.weights, 1e-7)
    close(found.state.control, plain.control, 1e-7)
    mine = found.private(data.ids)
    for i, (_, _, _, mixed) in enumerate(best):
        close({n: v[i] for n, v in mine.personal.items()}, mixed, 1e-6)
        close({n: v[i] for n, v in mine.control.items()}, plain.own[i], 1e-7)


@pytest.mark.parametrize(("generality", "method"), [(0.0, "fedavg"), (1.0, "scaffold")])
def test_its_ends_are_fedavg_and_scaffold(generality, method):
    data = split(LENGTHS)
    mine = run(*game(decoupled(generality=generality, tune_p=False), data), data, ROUNDS)
    train = {"weighting": "equal"}
    theirs = replace(settings(train=train), method=method)
    other = run(*game(theirs, data), data, ROUNDS)
    close(mine.state.weights, other.state.weights, 1e-12)


def uploads(chosen, data, mine=None):
    """What the clients send in a stage with control variates that are not 0."""
    server, client = game(chosen, data)
    found = run(server, client, data, 2)
    state = found.state
    down = ControlledStage(state.weights, state.utility, 3, state.control)
    keys = KEY.fold("stage").fold(data.ids)
    up, kept = client.update(down, mine or found.private(data.ids), data, keys)
    return up, kept, found


@pytest.mark.parametrize(
    "other",
    [
        BranchOptions(use=False),
        BranchOptions(use=True, shares=2, epochs=0),
        BranchOptions(use=True, shares=9, epochs=4, rates=(0.7,)),
    ],
)
def test_no_bit_of_what_is_sent_or_made_of_it_depends_on_a_branch(other):
    """Others feel nothing: not in the upload, not in W, c, p or the server's utility."""
    data = split(LENGTHS)
    first, kept, one = uploads(decoupled(), data)
    second, others, two = uploads(decoupled(other), data)
    for name in ("change", "control", "samples", "loss", "diverged"):
        for (_, left), (_, right) in zip(
            tree.tensors(getattr(first, name)), tree.tensors(getattr(second, name)), strict=True
        ):
            assert torch.equal(left, right), name
    for (path, left), (_, right) in zip(
        tree.tensors(one.state), tree.tensors(two.state), strict=True
    ):
        assert torch.equal(left, right), path
    assert any(not torch.equal(v, others.personal[name]) for name, v in kept.personal.items())


def test_a_branch_is_chosen_on_validation_samples_alone():
    """Garbage in the test sets changes no branch, and no bit of anything."""
    data = split(LENGTHS)
    poisoned = split(LENGTHS)
    poisoned.test.samples["x"].fill_(1e3)
    found = [run(*game(decoupled(), one), one, ROUNDS) for one in (data, poisoned)]
    for (path, left), (_, right) in zip(
        *(tree.tensors(one.private(data.ids)) for one in found), strict=True
    ):
        assert torch.equal(left, right), path
    close(found[0].state.weights, found[1].state.weights, 0.0)


def test_a_client_without_samples_has_the_model_that_it_received():
    data = split([5, 0, 4])
    data = replace(data, valid=labelled([7, 0, 6], "valid"))
    server, client = game(decoupled(), data)
    before = run(server, client, data, ROUNDS - 1).state.weights
    found = run(server, client, data, ROUNDS)
    mine = found.private([1]).personal
    close({n: v[0] for n, v in mine.items()}, before, 0.0)


def test_chunks_and_the_order_of_clients_make_no_difference():
    data, chosen = split([5, 3, 0, 12, 7]), decoupled()
    whole = run(*game(chosen, data), data, ROUNDS)
    parts = run(*game(chosen, data), data, ROUNDS, 2)
    close(parts.state.weights, whole.state.weights, 1e-12)
    close(parts.private(data.ids).personal, whole.private(data.ids).personal, 1e-12)
    turned = reversed_ids(*game(chosen, data), data, ROUNDS)
    close(turned.state.weights, whole.state.weights, 1e-6)
    close(turned.private(data.ids).personal, whole.private(data.ids).personal, 1e-6)


def test_the_boundary_holds():
    data = split(LENGTHS)
    server, client = game(decoupled(), data, Net)
    found = run(server, client, data, 3)
    state = found.state
    steps = {
        "update": ControlledStage(state.weights, state.utility, 4, state.control),
        "evaluate": GlobalModel(state.weights),
    }
    boundary_holds(client, steps, found.private(data.ids), data)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"reading": "recommended", "game": GameSettings(generality=0.5)}, "generality"),
        ({"reading": "literal", "branch": BranchOptions(use=True)}, "branch.use"),
        ({"reading": "decoupled", "game": GameSettings(reward_ratio="1:1")}, "generality"),
    ],
)
def test_settings_without_effect_are_refused(given, word):
    with pytest.raises(UserError, match=word):
        resolve(Settings(**given))


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_generality_lies_between_0_and_1(value):
    with pytest.raises(UserError, match=r"game\.generality"):
        GameSettings(generality=value)


def test_it_beats_the_papers_game_in_both_models_on_a_small_sample():
    """Rounds in which drift is what counts; on test samples, which nothing was chosen by."""
    found = {}
    for reading in ("recommended", "decoupled"):
        chosen = Settings(
            reading=reading,
            rounds=8,
            data=TaskSettings(clients=12),
            train=TrainSettings(epochs=6, evaluate_every=8),
        )
        module = FederatedRun(Experiment(chosen).federation())
        while not module.finished:
            module.advance()
        last = module.history[-1]
        found[reading] = [last[f"test/{who}_accuracy"] for who in ("server", "personal")]
    for ours, theirs in zip(found["decoupled"], found["recommended"], strict=True):
        assert ours > theirs + 0.01
