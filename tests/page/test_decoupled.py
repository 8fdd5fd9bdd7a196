"""The reading decoupled against plain loops, and that a branch touches nobody."""

from dataclasses import replace
from functools import partial

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
from tests.page.small_games import HELD, LENGTHS, MEASURED, game, pairs, settings

from coterie.core.errors import UserError
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.methods.settings.any_module import FedDynOptions
from coterie.core.methods.settings.fedavg import BranchOptions
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.page.answer import best_response
from coterie.page.drift import DynamicRegularizer
from coterie.page.experiment import Experiment
from coterie.page.readings import resolve
from coterie.page.settings import GameSettings, Settings, TaskSettings, TrainSettings

ROUNDS = 3
ALPHA = 0.5
CONTROL = {"drift": "control"}
DYNAMIC = {"drift": "dynamic", "alpha": ALPHA}
BRANCH = BranchOptions(use=True, shares=4, epochs=2, rates=(1.0, 0.25))


def decoupled(branch=BRANCH, train=None, **changes):
    changes = changes if "drift" in changes else DYNAMIC | changes
    return replace(settings("decoupled", train, **changes), branch=branch)


def gradients(module, batch):
    names, values = zip(*module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(module.loss(batch), values), strict=True))


def loaded(build, weights):
    module = built(build)
    module.load_state_dict(weights)
    return module


def trained(build, weights, batches, lr, correction=None):
    """Plain SGD; what a correction makes of the parameters is added to every gradient."""
    now, count = {name: w.clone() for name, w in weights.items()}, 0
    for batch in batches:
        g = gradients(loaded(build, now), batch)
        extra = correction(now) if correction else {name: 0.0 for name in g}
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
        self.measured = self.weights

    def correction(self, i, w):
        """What is added to the gradients of client i at w."""
        game, own = self.chosen.game, self.own[i]
        if game.drift == "control":
            return {n: game.generality * (c - own[n]) for n, c in self.control.items()}
        pulled = {n: game.alpha * (w[n] - self.weights[n]) - own[n] for n in w}
        return {n: game.generality * value for n, value in pulled.items()}

    def play(self, number):
        train, game = self.chosen.train, self.chosen.game
        sent, controls, branches = [], [], []
        for i in range(len(self.data)):
            samples, key = samples_of(self.data.train, i), key_of(i, "update", number)
            batches = epochs_of(samples, i, train.epochs, train.batch_size, key)
            correction = partial(self.correction, i)
            w, steps = trained(self.build, self.weights, batches, train.lr, correction)
            added = self.correction(i, w)
            if game.drift == "control":
                # What was made in K steps is their mean gradient and the correction.
                way = steps * train.lr
                controls.append({n: (self.weights[n] - w[n]) / way - added[n] for n in w})
            else:  # at rest the gradient and what is added cancel
                controls.append({n: -value for n, value in added.items()})
            sent.append(w)
            branches.append(self.branch(i, w, samples, key))
        stacked = {n: torch.stack([w[n] for w in sent]) for n in self.weights}
        p = torch.full((len(sent),), 1 / len(sent), dtype=torch.float64)
        if self.chosen.game.tune_p:
            p = best_response(built(self.build), stacked, HELD, self.chosen.game)
        self.weights = {n: torch.tensordot(p, w, 1) for n, w in stacked.items()}
        self.own, self.measured = controls, self.weights
        self.control = {n: torch.stack([c[n] for c in controls]).mean(0) for n in self.control}
        if game.drift == "dynamic":
            self.weights = {n: w - self.control[n] / game.alpha for n, w in self.weights.items()}
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


@pytest.mark.parametrize(
    ("build", "generality", "tune_p"),
    [
        (Softmax, 0.0, False),
        (Softmax, 1.0, True),
        (Net, 0.3, True),
    ],
)
@pytest.mark.parametrize("drift", [CONTROL, DYNAMIC])
def test_stages_equal_a_plain_loop(build, generality, tune_p, drift):
    chosen, data = decoupled(generality=generality, tune_p=tune_p, **drift), split(LENGTHS)
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
    close(server.model(found.state), plain.measured, 1e-7)
    close(found.state.control, plain.control, 1e-7)
    mine = found.private(data.ids)
    for i, (_, _, _, mixed) in enumerate(best):
        close({n: v[i] for n, v in mine.personal.items()}, mixed, 1e-6)
        close({n: v[i] for n, v in mine.control.items()}, plain.own[i], 1e-7)


@pytest.mark.parametrize(
    ("drift", "generality", "method", "participation"),
    [
        (CONTROL, 0.0, "fedavg", 0.5),
        (CONTROL, 1.0, "scaffold", 1.0),
        (CONTROL, 1.0, "scaffold", 0.5),
        (DYNAMIC, 0.0, "fedavg", 1.0),
        (DYNAMIC, 1.0, "feddyn", 1.0),
        (DYNAMIC, 1.0, "feddyn", 0.5),
    ],
)
def test_its_ends_are_fedavg_and_a_method_without_drift(drift, generality, method, participation):
    data, train = split(LENGTHS), {"weighting": "equal", "participation": participation}
    chosen = decoupled(train=train, generality=generality, tune_p=False, **drift)
    server, client = game(chosen, data)
    mine = run(server, client, data, ROUNDS)
    theirs = replace(settings(train=train), method=method, feddyn=FedDynOptions(alpha=ALPHA))
    theirs_server, theirs_client = game(theirs, data)
    other = run(theirs_server, theirs_client, data, ROUNDS)
    close(mine.state.weights, other.state.weights, 1e-12)
    close(server.model(mine.state), theirs_server.model(other.state), 1e-12)


@pytest.mark.parametrize("generality", [0.25, 0.6, 1.0])
def test_at_rest_lambda_says_how_much_of_its_own_a_client_keeps(generality):
    """Of quadratic losses, each (1 - λ) f_i + λ α/2 (w - W)² is least, and W is their mean."""
    alpha, a, b = 0.4, torch.tensor([1.0, 3.0, 0.5]), torch.tensor([2.0, -1.0, 4.0])
    drift = DynamicRegularizer(generality, alpha)
    start, own, mean = torch.zeros(1), torch.zeros(3), torch.zeros(())
    for _ in range(1000):
        received = {"w": start.expand(3)}
        w = start.expand(3).double()
        # The minimum of what is trained: g(w) + pull(w) = 0, both linear.
        pull, context = drift.pull(received, {}, {"w": own})
        at_0 = pull({"w": torch.zeros(3)}, context)["w"]
        slope = pull({"w": torch.ones(3)}, context)["w"] - at_0
        w = (a * b - at_0) / (a + slope)
        own = own + drift.moved({"w": w - start}, {}, {"w": own}, torch.ones(3))["w"]
        mean = own.mean()
        start = drift.start({"w": w.mean()}, {"w": mean})["w"]
    pulled, kept = generality * alpha, (1 - generality) * a
    shares = kept / (kept + pulled)  # of b_i in w_i
    centre = (shares * b).mean() / shares.mean() if generality < 1 else (a * b).sum() / a.sum()
    torch.testing.assert_close(start, centre, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(w, shares * b + (1 - shares) * centre, rtol=1e-4, atol=1e-4)


def uploads(chosen, data, mine=None):
    """What the clients send in a stage with corrections that are not 0."""
    server, client = game(chosen, data)
    found = run(server, client, data, 2)
    state = found.state
    down = server.stage(state, 3)
    keys = KEY.fold("stage").fold(data.ids)
    up, kept = client.update(down, mine or found.private(data.ids), data, keys)
    return up, kept, found


NO_BRANCH = BranchOptions(use=False)
AS_SENT = BranchOptions(use=True, shares=2, epochs=0)
LONGER = BranchOptions(use=True, shares=9, epochs=4, rates=(0.7,))


@pytest.mark.parametrize(
    ("drift", "other"),
    [(CONTROL, NO_BRANCH), (DYNAMIC, NO_BRANCH), (CONTROL, AS_SENT), (DYNAMIC, LONGER)],
)
def test_no_bit_of_what_is_sent_or_made_of_it_depends_on_a_branch(drift, other):
    """Others feel nothing: not in the upload, not in W, c, p or the server's utility."""
    data = split(LENGTHS)
    first, kept, one = uploads(decoupled(**drift), data)
    second, others, two = uploads(decoupled(other, **drift), data)
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
    chosen = decoupled(train=MEASURED)
    found = [run(*game(chosen, one), one, ROUNDS) for one in (data, poisoned)]
    for (path, left), (_, right) in zip(
        *(tree.tensors(one.private(data.ids)) for one in found), strict=True
    ):
        assert torch.equal(left, right), path
    close(found[0].state.weights, found[1].state.weights, 0.0)


def test_a_client_without_samples_has_the_model_that_it_received():
    data = split([5, 0, 4])
    data = replace(data, valid=labelled([7, 0, 6], "valid"))
    server, client = game(decoupled(train=MEASURED), data)
    before = run(server, client, data, ROUNDS - 1).state.weights
    found = run(server, client, data, ROUNDS)
    mine = found.private([1]).personal
    close({n: v[0] for n, v in mine.items()}, before, 0.0)


@pytest.mark.parametrize("drift", [CONTROL, DYNAMIC])
def test_chunks_and_the_order_of_clients_make_no_difference(drift):
    data, chosen = split([5, 3, 0, 12, 7]), decoupled(**drift)
    whole = run(*game(chosen, data), data, ROUNDS)
    parts = run(*game(chosen, data), data, ROUNDS, 2)
    close(parts.state.weights, whole.state.weights, 1e-12)
    close(parts.private(data.ids).personal, whole.private(data.ids).personal, 1e-12)
    turned = reversed_ids(*game(chosen, data), data, ROUNDS)
    close(turned.state.weights, whole.state.weights, 1e-6)
    close(turned.private(data.ids).personal, whole.private(data.ids).personal, 1e-6)


@pytest.mark.parametrize(("drift", "told"), [(CONTROL, {"weight", "bias"}), (DYNAMIC, set())])
def test_clients_are_told_c_only_where_their_training_reads_it(drift, told):
    data = split(LENGTHS)
    server, client = game(decoupled(**drift), data)
    state = run(server, client, data, 2).state
    names = {name.rsplit(".", 1)[-1] for name in server.stage(state, 3).control}
    assert names == told
    assert {name.rsplit(".", 1)[-1] for name in state.control} == {"weight", "bias"}


@pytest.mark.parametrize(("drift", "build"), [(CONTROL, Net), (DYNAMIC, Softmax)])
def test_the_boundary_holds(drift, build):
    data = split(LENGTHS)
    server, client = game(decoupled(**drift), data, build)
    found = run(server, client, data, 3)
    state = found.state
    steps = {
        "update": server.stage(state, 4),
        "evaluate": GlobalModel(state.weights),
    }
    boundary_holds(client, steps, found.private(data.ids), data)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"reading": "recommended", "game": GameSettings(generality=0.5)}, "generality"),
        ({"reading": "recommended", "game": GameSettings(alpha=0.5)}, r"game\.alpha"),
        ({"reading": "decoupled", "game": GameSettings(drift="control", alpha=0.5)}, "no effect"),
        ({"reading": "decoupled", "game": GameSettings(alpha=20.0)}, "diverges"),
        ({"reading": "literal", "branch": BranchOptions(use=True)}, "branch.use"),
        ({"reading": "decoupled", "game": GameSettings(reward_ratio="1:1")}, "generality"),
    ],
)
def test_settings_without_effect_are_refused(given, word):
    with pytest.raises(UserError, match=word):
        resolve(Settings(**given))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_alpha_is_above_0(value):
    with pytest.raises(UserError, match=r"game\.alpha"):
        GameSettings(alpha=value)


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
            data=TaskSettings(clients=8),
            train=TrainSettings(epochs=6, batch_size=10, evaluate_every=8),
        )
        module = FederatedRun(Experiment(chosen).federation())
        while not module.finished:
            module.advance()
        last = module.history[-1]
        found[reading] = [last[f"test/{who}_accuracy"] for who in ("server", "personal")]
    for ours, theirs in zip(found["decoupled"], found["recommended"], strict=True):
        assert ours > theirs + 0.01
