"""FedALA against a naive loop in float64, client by client, and what its clients keep."""

import pytest
import torch
from tests.core.methods.labelled_clients import (
    CLASSES,
    KEY,
    LENGTHS,
    Headless,
    Net,
    Softmax,
    boundary_holds,
    built,
    close,
    each_chunk,
    epochs_of,
    key_of,
    loaded,
    refused_alone,
    reversed_ids,
    run,
    samples_of,
    sgd,
    split,
    weights_of,
)
from torch import nn

from coterie.core.errors import UserError
from coterie.core.methods.fedala import FedALAClient, FedALASettings, last_layers
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.tensors.keys import shuffle_rows

GENERAL = {"epochs": 2, "batch_size": 3, "lr": 0.2}
SETTINGS = FedALASettings(
    eta=4.0, s=0.6, p=2, threshold=0.02, window=3, max_passes=12, clip=0.5, **GENERAL
)


def halves(build=Net, settings=SETTINGS):
    return FedAvgServer(lambda: build(), settings), FedALAClient(built(build), settings)


def share_of(samples, c, key, settings):
    n = len(samples["y"])
    keys = key.fold("aggregation").fold("share").take(torch.zeros(n, dtype=torch.int64))
    order = shuffle_rows(keys, torch.zeros(n, dtype=torch.int64), torch.arange(n))
    chosen = order[: max(1, round(settings.s * n))]
    return {name: values[chosen] for name, values in samples.items()}


class NaiveClient:
    """Algorithm 1, lines 6 to 12, of one client, with autograd through the mixture."""

    def __init__(self, build, c, settings):
        self.module, self.c, self.settings = built(build), c, settings
        layers = ["body.0", "body.2", "head"][-settings.p :]
        self.top = [n for n, _ in self.module.named_parameters() if n.rpartition(".")[0] in layers]
        self.own, self.w, self.learned, self.passes = None, None, False, 0

    def mixture(self, new):
        mixed = {n: self.own[n] + (new[n] - self.own[n]) * self.w[n] for n in self.top}
        return {**new, **mixed}

    def one_pass(self, new, some, key):
        losses = []
        for batch in epochs_of(some, self.c, 1, self.settings.batch_size, key):
            for value in self.w.values():
                value.requires_grad_()
            scores = torch.func.functional_call(self.module, self.mixture(new), (batch["x"],))
            loss = nn.functional.cross_entropy(scores, batch["y"])
            grads = torch.autograd.grad(loss, list(self.w.values()))
            with torch.no_grad():
                for (n, value), grad in zip(list(self.w.items()), grads, strict=True):
                    self.w[n] = (value - self.settings.eta * grad).clamp(0, 1)
            losses.append(loss.item())
        self.passes += 1
        return sum(losses) / len(losses)

    def learn(self, new, samples, key):
        some, losses = share_of(samples, self.c, key, self.settings), []
        for number in range(self.settings.max_passes):
            one = key.fold("aggregation").fold("pass", number)
            losses.append(self.one_pass(new, some, one))
            last = torch.tensor(losses[-self.settings.window :], dtype=torch.float64)
            enough = len(losses) >= self.settings.window
            if self.learned or (enough and last.std(correction=0) < self.settings.threshold):
                break
        self.learned = True

    def update(self, new, samples, key):
        start = new
        if self.own is not None:
            if len(samples["y"]):
                self.learn(new, samples, key)
            start = self.mixture(new)
        else:
            self.w = {n: torch.ones_like(new[n]) for n in self.top}
        given = self.settings
        batches = epochs_of(samples, self.c, given.epochs, given.batch_size, key)
        sgd(loaded(self.module, start), batches, given.lr, clip=given.clip)
        self.own = weights_of(self.module)
        return self.own


def naive(build, data, rounds, settings):
    weights = weights_of(built(build))
    clients = [NaiveClient(build, c, settings) for c in data.ids.tolist()]
    n_all = int(data.lengths.sum())
    for number in range(1, rounds + 1):
        total = {n: torch.zeros_like(v) for n, v in weights.items()}
        for place, client in enumerate(clients):
            samples = samples_of(data.train, place)
            new = client.update(weights, samples, key_of(client.c, "update", number))
            for n, v in new.items():
                total[n] += len(samples["y"]) / n_all * v
        weights = total
    return weights, clients


@pytest.mark.parametrize(("build", "chunk"), [(Net, 1), (Net, None), (Softmax, 3)])
def test_equals_a_naive_loop(build, chunk):
    settings = SETTINGS if build is Net else FedALASettings(eta=0.5, s=0.6, p=1, **GENERAL)
    data = split()
    server, client = halves(build, settings)
    made = run(server, client, data, 3, chunk)
    weights, clients = naive(build, data, 3, settings)
    close(made.state.weights, weights)
    kept = made.private(data.ids)
    for c, expected in enumerate(clients):
        close({n: v[c] for n, v in kept.personal.items()}, expected.own)
        close({n: v[c] for n, v in kept.aggregation.items()}, expected.w)
    passes = [client.passes for client in clients]
    assert passes[2] == 0  # no samples
    if build is Net:
        # The test sees weights inside and on both ends of [0, 1], and unequal numbers of passes.
        every = torch.cat([v.flatten() for v in kept.aggregation.values()])
        assert int(((every > 0) & (every < 1)).sum()) > 0
        assert bool((every == 0).any())
        assert bool((every == 1).any())
        assert len(set(passes)) > 2


def test_one_gradient_step_in_closed_form():
    """On softmax regression, dL/dW = (P - Y)ᵀ X / n ⊙ (θ - θ_i)."""
    data = split([6])
    settings = FedALASettings(eta=0.7, s=1.0, threshold=1e9, window=2, max_passes=1, lr=0.1)
    server, client = halves(Softmax, settings)
    made = run(server, client, data, 1)
    (key,) = [KEY.fold("any").fold(data.ids)]
    new = {n: KEY.fold(n).normal(*v.shape, dtype=v.dtype) for n, v in made.state.weights.items()}
    mine = made.private(data.ids)
    _, after = client.update(GlobalModel(new), mine, data, key)
    x, y = data.train.samples["x"], data.train.samples["y"]
    scores = x @ new["head.weight"].T + new["head.bias"]  # W_i = 1: the mixture is θ
    wrong = (scores.softmax(1) - nn.functional.one_hot(y, CLASSES)) / len(y)
    pull = {"head.weight": wrong.T @ x, "head.bias": wrong.sum(0)}
    for name, grad in pull.items():
        step = new[name] - mine.personal[name][0]
        expected = (1 - 0.7 * grad * step).clamp(0, 1)
        torch.testing.assert_close(after.aggregation[name][0], expected, atol=1e-14, rtol=1e-14)


def test_first_round_is_fedavg():
    data = split()
    settings = FedAvgSettings(clip=0.5, **GENERAL)
    server, client = halves()
    plain = run(FedAvgServer(Net, settings), FedAvgClient(built(Net), settings), data, 1)
    close(run(server, client, data, 1).state.weights, plain.state.weights, 0.0)


def test_layers_are_modules_and_the_others_follow_the_server():
    names = [n for n, _ in built(Net).named_parameters()]
    assert last_layers(names, 1) == ["head.weight", "head.bias"]
    assert last_layers(names, 2) == ["body.2.weight", "body.2.bias", "head.weight", "head.bias"]
    assert last_layers(names, 9) == names
    _, client = halves()
    mine = client.newcomers(2)
    assert list(mine.aggregation) == last_layers(names, 2)
    new = {n: v[None] + 1 for n, v in weights_of(built(Net)).items()}
    old = {n: v - 1 for n, v in new.items()}
    half = {n: torch.full_like(new[n], 0.25) for n in mine.aggregation}
    start = client.mixed(half, client.between(old, new))
    for name in names:
        taken = 0.75 if name in half else 0.0
        torch.testing.assert_close(start[name], new[name] - taken, atol=1e-14, rtol=0)


def test_part_of_the_clients_takes_part():
    """Whoever comes first in a later round starts from the server's model then."""
    data = split([4] * 8)
    settings = FedALASettings(eta=1.0, p=2, fraction=0.25, **GENERAL)
    server, client = halves(Net, settings)
    made = run(server, client, data, 6)
    assert [journal.scalars["fed/clients"] for journal in made.journals] == [2] * 6
    kept = made.private(data.ids)
    assert int(kept.rounds.sum()) == 12
    assert int(kept.rounds.max()) > 1
    fresh = kept.rounds <= 1  # has never mixed
    for value in kept.aggregation.values():
        assert bool((value[fresh] == 1).all())


def test_one_client_and_its_model():
    data = split([6])
    made = run(*halves(), data, 3)
    weights, _ = naive(Net, data, 3, SETTINGS)
    close(made.state.weights, weights)
    close({n: v[0] for n, v in made.private([0]).personal.items()}, weights)


@pytest.mark.parametrize("lengths", [[0], [0, 0]])
def test_nobody_has_data(lengths):
    server, client = halves()
    made = run(server, client, split(lengths), 2)
    close(made.state.weights, server.begin(KEY).weights, 0.0)


def test_client_order_makes_no_difference():
    server, client = halves()
    straight = run(server, client, split(), 2)
    close(reversed_ids(server, client, split(), 2).state.weights, straight.state.weights)


@each_chunk
def test_nan_client_is_refused_and_rolled_back(chunk):
    server, client = halves()
    made, _ = refused_alone(server, client, split(), 3, chunk=chunk)
    kept = made.private(torch.arange(len(LENGTHS)))
    assert kept.rounds.tolist() == [2, 2, 2, 0, 2, 2, 2, 2]
    assert all(bool((v[3] == 1).all()) for v in kept.aggregation.values())


def test_boundary():
    data = split()
    server, client = halves()
    made = run(server, client, data, 2)
    down = GlobalModel(made.state.weights)
    boundary_holds(client, {"update": down, "evaluate": down}, made.private(data.ids), data)


def test_any_module_will_do():
    data = split()
    settings = FedALASettings(eta=0.01, **GENERAL | {"lr": 0.01})
    made = run(*halves(Headless, settings), data, 2)
    losses = [journal.scalars["eval/personal_loss"] for journal in made.journals]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"eta": 0.0},
        {"eta": float("nan")},
        {"s": 0.0},
        {"s": 1.1},
        {"p": 0},
        {"threshold": 0.0},
        {"window": 1},
        {"max_passes": 0},
        {"keep_models": False},
    ],
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        FedALASettings(**wrong)
