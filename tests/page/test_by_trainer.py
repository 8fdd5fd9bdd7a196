"""Classifiers under an ordinary Trainer find what the rows `central` and `local` find."""

import pytest
import torch
from tests.core.front.fitted import apart, rounds, trained, trainer

import coterie
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.methods.by_trainer import SampleTraining
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.page.data.task import Form
from coterie.page.models import make_model

TRAIN = {"train": {"epochs": 2, "batch_size": 20}, "data": {"clients": 6}}


def test_all_clients_in_one_place_as_the_row_central():
    """The row has gradients in closed form, the Trainer those of autograd."""
    how = {**TRAIN, "central": {"epochs": 1}}
    module, logged = trained(2, "page", **how)
    row = rounds(2, "page", "central", **how)
    assert apart(module, row.server_state.weights) < 1e-10
    last = row.history[-1]
    assert logged["fed/loss"] < row.history[0]["fed/loss"]
    measured = [key for key in logged if key.startswith("eval/")]
    assert {"eval/accuracy", "eval/server_accuracy", "eval/global_accuracy"} <= set(measured)
    for key in ("fed/loss", *measured):
        assert logged[key] == pytest.approx(last[key], abs=1e-6)


def test_one_client_alone_as_the_row_local():
    module, logged = trained(4, "page", client=3, **TRAIN)
    row = rounds(2, "page", "local", **TRAIN)
    mine = row.store.take(torch.tensor([3]))
    assert apart(module, {key: value[0] for key, value in mine.personal.items()}) < 1e-10
    _, values = row.journal.clients["eval/personal_accuracy"]
    assert logged["eval/accuracy"] == pytest.approx(float(values[3]), abs=1e-6)


def test_a_test_is_of_clients_and_server():
    module, data = coterie.network("page", **TRAIN)
    trainer(1).fit(module, data)
    tested = trainer().test(module, data, verbose=False)[0]
    names = {f"test/{who}_{what}" for who in ("global", "server") for what in ("loss", "accuracy")}
    assert set(tested) == names


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("small-cnn", Form("cifar-100", 5, (3, 32, 32), "uint8")),
        ("resnet18-small-stem", Form("cifar-100", 5, (3, 8, 8), "uint8")),
        ("char-lstm", Form("shakespeare", 80, (12,), "uint8")),
    ],
)
def test_networks_of_pictures_and_plays(name, form):
    """Their data are not at hand, so samples are drawn: with a step or two the loss falls."""
    drawn = torch.Generator().manual_seed(0)
    clients = [
        {
            "x": torch.randint(0, 80, (6, *form.shape), dtype=torch.uint8, generator=drawn),
            "y": torch.randint(0, form.n_classes, (6,), generator=drawn),
        }
        for _ in range(2)
    ]
    data = SampleData.from_clients(clients)
    settings = FedAvgSettings(epochs=1, batch_size=6, lr=1e-3)
    split = SplitSamples.of(data, data, data)
    found = SampleTraining(lambda: make_model(name, form), settings, split, seed=0)
    optimizer, losses = found.optimizer(), []
    for number in range(6 * found.per_epoch):
        loss = found.loss(found.batch(number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    with torch.no_grad():
        measured = found.measures("valid", [found.outcome(one) for one in found.questions("valid")])
    assert set(measured) == {"eval/global_loss", "eval/global_accuracy"}
