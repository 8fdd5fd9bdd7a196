"""Local and central training against ordinary SGD, and the two against FedAvg."""

from functools import partial

import lightning
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
    reversed_ids,
    run,
    samples_of,
    sgd,
    split,
    weights_of,
)
from torch.utils.data import DataLoader

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.methods.bounds import (
    CentralClient,
    CentralModel,
    CentralServer,
    LocalClient,
    LocalServer,
)
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.methods.ranking.central import Central
from coterie.core.methods.settings.any_module import LocalSettings
from coterie.core.run.driver import FederatedRun
from coterie.core.training.module import FederatedModule

GENERAL = {"epochs": 2, "batch_size": 3, "lr": 0.2, "weight_decay": 0.01, "clip": 0.5}
SERVER = ServerSamples(labelled([15], "server").samples, labelled([9], "reported").samples)


def alone(build=Net, **options):
    settings = LocalSettings(**GENERAL | options)
    return LocalServer(lambda: build(), settings, SERVER), LocalClient(built(build), settings)


def together(data, build=Net, **options):
    settings = FedAvgSettings(**GENERAL | options)
    server = CentralServer(lambda: build(), settings, data.train, SERVER)
    return server, CentralClient(built(build), settings)


@each_chunk
@pytest.mark.parametrize("build", [Net, Softmax])
def test_local_clients_equal_ordinary_sgd(build, chunk):
    data = split()
    server, client = alone(build)
    made = run(server, client, data, 3, chunk)
    kept = made.private(data.ids)
    accuracies = []
    for c in range(len(data)):
        module = built(build)
        for number in (1, 2, 3):
            batches = epochs_of(samples_of(data.train, c), c, 2, 3, key_of(c, "train", number))
            sgd(module, batches, 0.2, decay=0.01, clip=0.5)
        close({n: v[c] for n, v in kept.personal.items()}, weights_of(module))
        accuracies.append(module.correct(samples_of(data.valid, c)).double().mean().item())
    found = made.journals[-1].scalars["eval/personal_accuracy"]
    assert found == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-12)


def test_local_measures_no_global_model_and_uploads_reports_only():
    data = split()
    server, client = alone()
    made = run(server, client, data, 3)
    names = set(made.journals[-1].scalars)
    expected = {f"{p}/personal_{m}" for p in ("eval", "test") for m in ("loss", "accuracy")}
    assert names == {"fed/clients", "eval/accuracy"} | expected
    silent = run(*alone(evaluate_every=0), data, 3)
    assert silent.ledger.bytes("up") == 0
    model = sum(value.numel() for value in made.state.weights.values()) * 8
    assert silent.ledger.bytes("down") == len(LENGTHS) * model  # once, at the start
    steps = {name: step.up for name, step in client.steps().items()}
    assert steps["train"] is None
    assert steps["receive"] is None


def test_local_part_of_the_clients_takes_part():
    made = run(*alone(fraction=0.25), split([4] * 8), 3)
    kept = made.private(torch.arange(8))
    assert int(kept.rounds.sum()) == 6
    for c in (kept.rounds == 0).nonzero().flatten().tolist():
        close({n: v[c] for n, v in kept.personal.items()}, made.state.weights, 0.0)


def test_local_client_order_makes_no_difference():
    data = split()
    straight = run(*alone(), data, 2).private(data.ids).personal
    close(reversed_ids(*alone(), data, 2).private(data.ids).personal, straight)


@each_chunk
def test_local_nan_client_is_refused_and_rolled_back(chunk):
    data = split()
    data.train.samples["x"][data.train.offsets[3]] = torch.nan
    made = run(*alone(), data, 2, chunk)
    kept = made.private(data.ids)
    assert [(s, c) for s, c, _ in made.journals[0].refused] == [("train", 3)]
    assert kept.rounds.tolist() == [2, 2, 2, 0, 2, 2, 2, 2]
    close({n: v[3] for n, v in kept.personal.items()}, made.state.weights, 0.0)


@pytest.mark.parametrize("lengths", [[0], [6], [0, 0]])
def test_local_nobody_and_one(lengths):
    data = split(lengths)
    made = run(*alone(), data, 1)
    batches = epochs_of(samples_of(data.train, 0), 0, 2, 3, key_of(0, "train", 1))
    module = built(Net)
    sgd(module, batches, 0.2, decay=0.01, clip=0.5)
    close({n: v[0] for n, v in made.private([0]).personal.items()}, weights_of(module))


def test_local_boundary():
    data = split()
    server, client = alone()
    made = run(server, client, data, 2)
    boundary_holds(client, {"evaluate": None}, made.private(data.ids), data)


def test_local_must_keep_models():
    with pytest.raises(UserError, match="keep_models"):
        LocalSettings(keep_models=False)


@pytest.mark.parametrize("build", [Net, Softmax, Headless])
@pytest.mark.parametrize("batch_size", [3, None])
def test_central_is_sgd_on_all_samples(build, batch_size):
    data, options = split(), {"batch_size": batch_size, "lr": 0.02}
    server, client = together(data, build, **options)
    made = run(server, client, data, 2)
    module = built(build)
    for number in (1, 2):
        key = KEY.fold("round", number).fold("central").fold(torch.tensor([0]))
        batches = epochs_of(data.train.samples, 0, 2, batch_size, key)
        seen = sgd(module, batches, 0.02, decay=0.01, clip=0.5)
        steps = 2 * (1 if batch_size is None else -(-sum(LENGTHS) // 3))
        assert len(seen) == steps
        found = made.journals[number - 1].scalars["fed/loss"]
        assert found == pytest.approx(sum(seen) / steps, rel=1e-12)
    close(made.state.weights, weights_of(module))


def test_central_equals_fedavg_with_one_client_that_has_everything():
    """One full-batch step of FedAvg on many clients is a central step, too."""
    data, settings = split(), FedAvgSettings(lr=0.3)
    many = run(FedAvgServer(Net, settings), FedAvgClient(built(Net), settings), data, 4)
    server = CentralServer(Net, settings, data.train)
    close(
        run(server, CentralClient(built(Net), settings), data, 4).state.weights, many.state.weights
    )


def test_central_measures_the_global_model_and_keeps_nothing():
    data = split()
    server, client = together(data)
    made = run(server, client, data, 2)
    names = set(made.journals[-1].scalars)
    measured = {
        f"{part}/{model}_{measure}"
        for part in ("eval", "test")
        for model in ("server", "global")
        for measure in ("loss", "accuracy")
    }
    assert names == {"fed/loss", "eval/accuracy"} | measured
    module = loaded(built(Net), made.state.weights)
    right = [module.correct(samples_of(data.valid, c)).double().mean() for c in range(len(data))]
    mean = torch.stack(right).mean().item()
    assert made.journals[-1].scalars["eval/global_accuracy"] == pytest.approx(mean, abs=1e-12)
    assert made.private(data.ids).personal == {}
    down = CentralModel(made.state.weights, {})
    boundary_holds(client, {"evaluate": down}, made.private(data.ids), data)


def test_central_training_that_diverges_names_the_remedy():
    data = split()
    data.train.samples["x"][0] = torch.inf
    server, client = together(data)
    with pytest.raises(UserError, match="diverged: lower the learning rate"):
        run(server, client, data, 1)


def test_central_without_samples_stays_where_it_is():
    data = split([0, 0])
    server, client = together(data)
    made = run(server, client, data, 1)
    close(made.state.weights, server.begin(KEY).weights, 0.0)
    assert "fed/loss" not in made.journals[0].scalars


@pytest.mark.parametrize("kind", ["local", "central"])
def test_lightning_drives_both(kind, tmp_path):
    data = split([4, 6])
    server, client = alone(rounds=3) if kind == "local" else together(data, rounds=3)
    module = FederatedRun(Federation(server, client, [data], rounds=3))
    fitter(-1, default_root_dir=tmp_path).fit(FederatedModule(module))
    assert len(module.history) == 3


def fitter(epochs, **options):
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


class Whole(Central):
    """Keeps the gradients and the loss of each step."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen = []

    def on_before_optimizer_step(self, optimizer):
        self.seen.append({n: v.grad.clone() for n, v in self.model.named_parameters()})


def batches_of(data, epoch_key):
    return list(epochs_of(data.samples, 0, 1, 5, epoch_key))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [Net, Softmax])
def test_lightning_trains_a_classifier_as_the_stacked_step_does(build):
    """`Central` by a Trainer: loss, gradients and models equal those of the stacked clients."""
    data = labelled([13, 13])
    starts = [built(build), build()]
    settings = FedAvgSettings(batch_size=5, lr=0.1)
    local = LocalTraining(built(build), settings)
    key = KEY.fold("lightning").fold(torch.zeros(2, dtype=torch.int64))
    stack = {
        n: torch.stack([dict(m.named_parameters())[n].detach() for m in starts])
        for n in weights_of(starts[0])
    }
    fitted = local.train(
        stack, local.batches(SampleData(data.ids * 0, data.samples, data.offsets), key)
    )
    for c, model in enumerate(starts):
        one = SampleData(torch.tensor([0]), samples_of(data, c), torch.tensor([0, 13]))
        shown = batches_of(one, KEY.fold("lightning").fold(torch.tensor([0])))
        module = Whole(model, partial(torch.optim.SGD, lr=0.1))
        run_ = fitter(1)
        first = {n: v.detach().clone()[None] for n, v in model.named_parameters()}
        run_.fit(module, DataLoader(shown, batch_size=None))
        close({n: v[c] for n, v in fitted.params.items()}, weights_of(model))
        loss = run_.callback_metrics["train/loss"].item()
        assert loss == pytest.approx(fitted.loss[c].item(), rel=1e-6)  # Lightning means in float32
        slope = local.slope or torch.func.vmap(torch.func.grad_and_value(local.loss))
        grads, _ = slope(first, {n: v[None] for n, v in shown[0].items()})
        close({n: v[0] for n, v in grads.items()}, module.seen[0])


@pytest.mark.filterwarnings("ignore")
def test_central_server_and_lightning_agree():
    """One round with all samples is one epoch of a Trainer on the same batches."""
    data = split([7, 9])
    settings = FedAvgSettings(batch_size=5, lr=0.1)
    server = CentralServer(Net, settings, data.train)
    made = run(server, CentralClient(built(Net), settings), data, 1)
    key = KEY.fold("round", 1).fold("central").fold(torch.tensor([0]))
    model = built(Net)
    shown = batches_of(data.train, key)
    fitter(1).fit(
        Whole(model, partial(torch.optim.SGD, lr=0.1)), DataLoader(shown, batch_size=None)
    )
    close(made.state.weights, weights_of(model))
