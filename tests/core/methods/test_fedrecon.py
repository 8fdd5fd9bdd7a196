"""FedRECON against a naive loop in float64, and against the optimum of a convex head."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import (
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
    labelled,
    loaded,
    refused_alone,
    reversed_ids,
    run,
    samples_of,
    sgd,
    split,
    weights_of,
)

from coterie.core.errors import UserError
from coterie.core.methods.fedrecon import (
    FedReconClient,
    FedReconServer,
    FedReconSettings,
    MeasuredBase,
    reconstruct,
)
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.tensors.keys import shuffle_rows

SETTINGS = FedReconSettings(
    support=0.4,
    recon_lr=0.5,
    recon_epochs=3,
    server_lr=0.7,
    epochs=2,
    batch_size=3,
    lr=0.2,
    weight_decay=0.01,
    clip=0.4,
)
SERVER = ServerSamples(labelled([15], "server").samples, labelled([9], "reported").samples)


def halves(build=Net, settings=SETTINGS, samples=SERVER):
    return FedReconServer(lambda: build(), settings, samples), FedReconClient(
        built(build), settings
    )


def parts_of(samples, key, share):
    """Support and query of one client: one sample is support, several leave one to each."""
    n = len(samples["y"])
    zeros = torch.zeros(n, dtype=torch.int64)
    order = shuffle_rows(key.fold("support").take(zeros), zeros, torch.arange(n))
    count = n if n < 2 else min(max(round(share * n), 1), n - 1)
    return [{k: v[part] for k, v in samples.items()} for part in (order[:count], order[count:])]


def train(module, part, batches, lr, settings):
    """Train the parts of a module whose names start so; the rest is frozen."""
    for name, value in module.named_parameters():
        value.requires_grad_(name.startswith(part))
    sgd(module, batches, lr, decay=settings.weight_decay, clip=settings.clip)


def rebuilt(module, weights, support, c, key, settings):
    """The module with the head reconstructed on a support set."""
    loaded(module, weights)
    again = key.fold("reconstruct")
    batches = epochs_of(support, c, settings.recon_epochs, settings.batch_size, again)
    train(module, "head", batches, settings.recon_lr, settings)
    return module


def naive(data, rounds, settings, ids=None):
    module = built(Net)
    weights = weights_of(module)
    for number in range(1, rounds + 1):
        total, weight = {n: torch.zeros_like(v) for n, v in weights.items()}, 0
        for c in range(len(data)) if ids is None else ids:
            samples, key = samples_of(data.train, c), key_of(c, "update", number)
            support, query = parts_of(samples, key, settings.support)
            rebuilt(module, weights, support, c, key, settings)
            batches = epochs_of(query, c, settings.epochs, settings.batch_size, key)
            train(module, "body", batches, settings.lr, settings)
            weight += len(query["y"])
            for n, v in weights_of(module).items():
                total[n] += len(query["y"]) * (v - weights[n])
        for n in [n for n in weights if n.startswith("body")]:
            weights[n] = weights[n] + settings.server_lr * total[n] / weight
    return weights


@pytest.mark.parametrize(
    ("changed", "chunk"),
    [({}, 1), ({}, None), ({"clip": None, "batch_size": None, "support": 0.8}, 3)],
)
def test_equals_a_naive_loop(changed, chunk):
    data, settings = split(), replace(SETTINGS, **changed)
    server, client = halves(settings=settings)
    made = run(server, client, data, 2, chunk)
    close(made.state.weights, naive(data, 2, settings))
    begun = server.begin(KEY).weights  # stateless: the initial head is that of every round
    assert all(torch.equal(made.state.weights[n], begun[n]) for n in ("head.weight", "head.bias"))
    assert not torch.equal(made.state.weights["body.0.bias"], begun["body.0.bias"])


@each_chunk
def test_accuracies_are_those_of_reconstructed_models(chunk):
    data = split()
    server, client = halves()
    made = run(server, client, data, 2, chunk)
    weights, module = made.state.weights, built(Net)
    shared = weights | server.head(weights)
    found = made.journals[-1]
    personal, general = [], []
    for c in range(len(data)):
        valid, key = samples_of(data.valid, c), key_of(c, "evaluate", 2)
        rebuilt(module, weights, samples_of(data.train, c), c, key, SETTINGS)
        own = module.correct(valid).double().mean().item()
        general.append(loaded(module, shared).correct(valid).double().mean().item())
        personal.append(own if data.lengths[c] else general[-1])
    mean = found.scalars["eval/personal_accuracy"]
    assert mean == pytest.approx(sum(personal) / len(personal), abs=1e-12)
    assert found.scalars["eval/global_accuracy"] == pytest.approx(
        sum(general) / len(general), abs=1e-12
    )
    for prefix, samples in (("eval", SERVER.valid), ("test", SERVER.test)):
        right = loaded(module, shared).correct(samples).double().mean().item()
        assert found.scalars[f"{prefix}/server_accuracy"] == pytest.approx(right, abs=1e-12)


def test_a_long_reconstruction_is_the_optimum_of_the_head():
    """Cross-entropy plus weight decay is strongly convex in the head: its gradient vanishes."""
    settings = replace(SETTINGS, recon_epochs=500, batch_size=None, clip=None, weight_decay=0.1)
    data = split([9, 4])
    _, client = halves(settings=settings)
    weights = weights_of(built(Net))
    stack = {n: v.expand(2, *v.shape) for n, v in weights.items()}
    base = {n: v for n, v in stack.items() if n.startswith("body")}
    head = {n: v for n, v in stack.items() if n.startswith("head")}
    found = reconstruct(client.local, base, head, data.train, KEY.fold(data.ids))
    for c in range(2):
        module = loaded(built(Net), weights | {n: v[c] for n, v in found.items()})
        module.loss(samples_of(data.train, c)).backward()
        for value in module.head.parameters():
            slope = value.grad + 0.1 * value.detach()
            torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-10, rtol=0)


def test_server_without_samples_measures_no_global_model():
    server, client = halves(samples=None)
    made = run(server, client, split(), 1)
    found = made.journals[-1].scalars
    assert "eval/personal_accuracy" in found
    assert not any("global" in name or "server" in name for name in found)


@pytest.mark.parametrize(
    ("lengths", "who"), [([0], []), ([0, 1], []), ([0, 2], [1]), ([1, 1, 5], [2])]
)
def test_only_query_samples_weigh(lengths, who):
    """A single sample is support; clients without a query change nothing."""
    data = split(lengths)
    server, client = halves()
    made = run(server, client, data, 2)
    begun = server.begin(KEY).weights
    close(made.state.weights, naive(data, 2, SETTINGS, who) if who else begun)
    assert ("fed/loss" in made.journals[0].scalars) == bool(who)


def test_part_of_the_clients_takes_part():
    made = run(*halves(settings=replace(SETTINGS, fraction=0.25)), split([4] * 8), 3)
    assert [journal.scalars["fed/clients"] for journal in made.journals] == [2] * 3


def test_client_order_makes_no_difference():
    server, client = halves()
    straight = run(server, client, split(), 2)
    close(reversed_ids(server, client, split(), 2).state.weights, straight.state.weights)


@each_chunk
def test_nan_client_is_refused(chunk):
    refused_alone(*halves(), split(), 3, chunk=chunk)


def test_the_head_never_travels_upwards():
    data = split([4, 4])
    server, client = halves(settings=replace(SETTINGS, evaluate_every=0))
    made = run(server, client, data, 1)
    base = 3 * 5 + 5 + 5 * 4 + 4
    assert made.ledger.bytes("up") == 2 * (base * 8 + 8 + 8)


def test_boundary():
    data = split()
    server, client = halves()
    made = run(server, client, data, 1)
    weights = made.state.weights
    steps = {
        "update": GlobalModel(weights),
        "evaluate": MeasuredBase(weights, server.head(weights)),
    }
    boundary_holds(client, steps, made.private(data.ids), data)


def test_work_counts_the_steps_of_both_parts():
    _, client = halves()
    # support of 5 samples: 2, of 6: 2, of 4: 2, of 3: 1, of 2: 1; batches of 3, 3 and 2 epochs
    assert client.work(split()).tolist() == [5, 3, 0, 7, 5, 5, 5, 5]
    assert len(LENGTHS) == 8


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Headless, "no parameter of the model is named as 'head.*'.* name the head of Headless"),
        (Softmax, "beside its head Softmax has no parameters to train"),
    ],
)
def test_models_without_base_and_head_are_refused(build, message):
    with pytest.raises(UserError, match=message):
        FedReconClient(build(), SETTINGS)
    with pytest.raises(UserError, match=message):
        FedReconServer(build, SETTINGS).begin(KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"support": 0.0},
        {"support": 1.0},
        {"recon_lr": 0.0},
        {"recon_epochs": 0},
        {"server_lr": float("inf")},
    ],
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        FedReconSettings(**wrong)
