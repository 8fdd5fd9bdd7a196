"""Fed-ROD against two optimizers a client in float64, the balanced softmax written out."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import (
    CLASSES,
    KEY,
    LENGTHS,
    WIDTH,
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
    split,
    weights_of,
)
from torch import nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.fedrod import FedRODClient, FedRODServer, FedRODSettings, class_counts
from coterie.core.methods.kit.model_messages import GlobalModel

SETTINGS = FedRODSettings(
    gamma=0.8, epochs=2, batch_size=3, lr=0.3, weight_decay=0.01, clip=0.3, rounds=9
)
HEAD = ["head.weight", "head.bias"]


def halves(build=Net, settings=SETTINGS):
    return FedRODServer(lambda: build(), settings), FedRODClient(built(build), settings)


def naive_client(module, head, samples, batches, settings):
    """Both losses of a batch from one forward pass, each followed by its own optimizer."""
    given = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    generic, personal = (torch.optim.SGD(m.parameters(), **given) for m in (module, head))
    counts = torch.tensor([(samples["y"] == c).double().sum() for c in range(CLASSES)]).double()
    for batch in batches:
        rows = torch.arange(len(batch["y"]))
        features = module.body(batch["x"])
        scores = module.head(features)
        weighted = counts**settings.gamma * scores.exp()
        balanced = -(weighted[rows, batch["y"]] / weighted.sum(1)).log().mean()
        summed = (scores + head(features)).detach() - head(features.detach()).detach()
        risk = nn.functional.cross_entropy(summed + head(features.detach()), batch["y"])
        for optimizer, model, loss in ((generic, module, balanced), (personal, head, risk)):
            optimizer.zero_grad()
            loss.backward()
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        generic.step()
        personal.step()


def naive(build, data, rounds, settings):
    module = built(build)
    heads = [nn.Linear(module.head.in_features, CLASSES).double() for _ in range(len(data))]
    for head in heads:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    weights, local = weights_of(module), {}
    for number in range(1, rounds + 1):
        total = {n: torch.zeros_like(v) for n, v in weights.items()}
        for c, head in enumerate(heads):
            samples, key = samples_of(data.train, c), key_of(c, "update", number)
            batches = epochs_of(samples, c, settings.epochs, settings.batch_size, key)
            naive_client(loaded(module, weights), head, samples, batches, settings)
            local[c] = weights_of(module)
            for n, v in local[c].items():
                total[n] += len(samples["y"]) / int(data.lengths.sum()) * v
        weights = total
    return weights, local, heads


@each_chunk
@pytest.mark.parametrize(
    ("build", "changed"),
    [(Net, {}), (Softmax, {}), (Net, {"clip": None, "gamma": 1.0, "batch_size": None})],
)
def test_equals_a_naive_loop(build, changed, chunk):
    data, settings = split(), replace(SETTINGS, **changed)
    made = run(*halves(build, settings), data, 2, chunk)
    weights, local, heads = naive(build, data, 2, settings)
    close(made.state.weights, weights)
    kept = made.private(data.ids)
    for c, head in enumerate(heads):
        close(
            {n: v[c] for n, v in kept.head.items()}, dict(zip(HEAD, head.parameters(), strict=True))
        )
        personal = {n: v[c] for n, v in kept.personal.items()}
        summed = {n: local[c][n] + kept.head[n][c] for n in HEAD}
        close(personal, {**local[c], **summed})


def test_personal_model_is_the_sum_of_both_heads():
    data = split()
    server, client = halves()
    made = run(server, client, data, 2)
    kept = made.private(data.ids)
    report, _ = client.evaluate(GlobalModel(made.state.weights), kept, data, KEY)
    for c in range(len(data)):
        model = loaded(built(Net), {n: v[c] for n, v in kept.personal.items()})
        generic = {
            n: v[c] - kept.head[n][c] if n in HEAD else v[c] for n, v in kept.personal.items()
        }
        two = loaded(built(Net), generic)
        x = samples_of(data.valid, c)["x"]
        features = two.body(x)
        more = features @ kept.head["head.weight"][c].T + kept.head["head.bias"][c]
        torch.testing.assert_close(model(x), two.head(features) + more, atol=1e-12, rtol=1e-12)
        share = model.correct(samples_of(data.valid, c)).double().mean()
        assert report.measures["personal/valid/accuracy"][c] == share


def test_closed_slope_equals_autograd():
    class Plain(Softmax):
        slope = None

    data = split()
    fast, slow = (run(*halves(build), data, 2) for build in (Softmax, Plain))
    close(fast.state.weights, slow.state.weights)
    close(fast.private(data.ids).head, slow.private(data.ids).head)
    losses = [made.journals[-1].scalars["fed/loss"] for made in (fast, slow)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@each_chunk
@pytest.mark.parametrize("build", [Net, Softmax])
def test_one_class_teaches_the_generic_predictor_nothing(build, chunk):
    """N_{m,c} = 0 for all other classes: the balanced softmax is 1 and its gradient 0."""
    data = split([4, 6, 3])
    data.train.samples["y"][:] = 2
    settings = replace(SETTINGS, weight_decay=0.0)
    server, client = halves(build, settings)
    made = run(server, client, data, 2, chunk)
    close(made.state.weights, server.begin(KEY).weights, 0.0)
    head = made.private(data.ids).head["head.bias"]
    assert bool((head[:, 2] > 0).all())
    assert bool((head[:, [0, 1, 3]] < 0).all())
    assert made.journals[0].refused == []


def test_balance_corrects_a_skewed_client():
    """With one class nine times as frequent, the balanced optimum predicts all classes alike."""
    y = torch.tensor([0] * 9 + [1, 2, 3])
    x = torch.zeros(12, WIDTH, dtype=torch.float64)
    data = SplitSamples.of(SampleData.from_clients([{"x": x, "y": y}]))
    settings = FedRODSettings(epochs=400, lr=1.0)
    made = run(*halves(Softmax, settings), data, 1)
    share = made.state.weights["head.bias"].softmax(0)
    torch.testing.assert_close(share, torch.full_like(share, 0.25), atol=1e-6, rtol=0)
    personal = made.private([0]).personal["head.bias"][0].softmax(0)
    expected = torch.tensor([9, 1, 1, 1], dtype=torch.float64) / 12
    torch.testing.assert_close(personal, expected, atol=1e-6, rtol=0)


def test_equal_counts_leave_the_generic_predictor_to_fedavg():
    """The balanced softmax of a client with all classes alike is the plain one."""
    data = split([8, 4])
    data.train.samples["y"][:] = torch.arange(12) % CLASSES
    general = {"epochs": 2, "batch_size": 3, "lr": 0.2}
    plain = FedAvgSettings(**general)
    expected = run(FedAvgServer(Net, plain), FedAvgClient(built(Net), plain), data, 2)
    for gamma in (1.0, 0.0):
        settings = FedRODSettings(gamma=gamma, **general)
        close(run(*halves(Net, settings), data, 2).state.weights, expected.state.weights)


def test_counts_of_classes():
    data = split().train
    found = class_counts(data, CLASSES)
    for c in range(len(data)):
        labels = samples_of(data, c)["y"].tolist()
        assert found[c].tolist() == [labels.count(k) for k in range(CLASSES)]
    with pytest.raises(UserError, match="build it with 4 or more"):
        class_counts(data, 3)


def test_part_of_the_clients_and_no_kept_models():
    settings = replace(SETTINGS, fraction=0.25, keep_models=False)
    made = run(*halves(Net, settings), split([4] * 8), 3)
    assert [journal.scalars["fed/clients"] for journal in made.journals] == [2] * 3
    kept = made.private(torch.arange(8))
    assert kept.personal == {}
    trained = kept.head["head.bias"].abs().sum(1) > 0
    assert torch.equal(trained, kept.rounds > 0)
    assert "eval/personal_accuracy" not in made.journals[-1].scalars


@pytest.mark.parametrize("lengths", [[0], [0, 0], [6]])
def test_nobody_and_one(lengths):
    server, client = halves()
    data = split(lengths)
    close(
        run(server, client, data, 2).state.weights,
        naive(Net, data, 2, SETTINGS)[0] if sum(lengths) else server.begin(KEY).weights,
    )


def test_client_order_makes_no_difference():
    server, client = halves()
    straight = run(server, client, split(), 2)
    close(reversed_ids(server, client, split(), 2).state.weights, straight.state.weights)


@each_chunk
def test_nan_client_is_refused_and_rolled_back(chunk):
    made, _ = refused_alone(*halves(), split(), 3, chunk=chunk)
    kept = made.private(torch.arange(len(LENGTHS)))
    assert kept.rounds.tolist() == [2, 2, 2, 0, 2, 2, 2, 2]
    assert not kept.head["head.weight"][3].any()


@pytest.mark.parametrize("build", [Net, Softmax])
def test_boundary(build):
    """With clipping, too, the upload of the generic predictor knows nothing of the personal."""
    data = split()
    server, client = halves(build)
    made = run(server, client, data, 2)
    down = GlobalModel(made.state.weights)
    boundary_holds(client, {"update": down, "evaluate": down}, made.private(data.ids), data)


def test_modules_without_a_trained_head_are_refused():
    class Frozen(Net):
        def __init__(self):
            super().__init__()
            self.head.requires_grad_(False)

    with pytest.raises(UserError, match=r"Fed-ROD trains two heads .* Headless: give a"):
        FedRODClient(Headless(), SETTINGS)
    with pytest.raises(UserError, match=r"Fed-ROD trains two heads .* Headless: give a"):
        FedRODServer(Headless, SETTINGS).begin(KEY)
    with pytest.raises(UserError, match="frozen"):
        FedRODClient(Frozen(), SETTINGS)


@pytest.mark.parametrize("wrong", [{"gamma": -1.0}, {"gamma": float("inf")}])
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        FedRODSettings(**wrong)
