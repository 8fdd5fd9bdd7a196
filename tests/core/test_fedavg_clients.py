"""FedAvg's clients: who counts, what travels, what is refused; settings, and Lightning."""

import pytest
import torch
from tests.core.test_fedavg import KEY, Linear, Net, algorithm, cohort_of, run, sample_data
from torch import nn

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.scaffold import ScaffoldClient, ScaffoldSettings
from coterie.core.methods.settings.any_module import FedProxSettings
from coterie.core.privacy.noise import Clip


def test_empty_clients_weigh_nothing():
    server, client = algorithm("fedavg", Net, epochs=2, batch_size=3)
    full = sample_data()
    index = (full.lengths > 0).nonzero().flatten()
    with_empty, journals = run(server, client, full, 2)
    without, _ = run(server, client, full.take(index), 2)
    for key, value in without.weights.items():
        torch.testing.assert_close(with_empty.weights[key], value, atol=1e-14, rtol=1e-14)
    assert journals[0].refused == []


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0]])
def test_nobody_has_data(lengths):
    server, client = algorithm("fedavg", Net)
    state, journals = run(server, client, sample_data(lengths), 1)
    assert torch.equal(state.weights["out.bias"], server.begin(KEY).weights["out.bias"])
    assert "fed/loss" not in journals[0].scalars
    assert "eval/global_loss" not in journals[0].scalars


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_nan_client_is_refused_and_rolled_back(chunk):
    data = sample_data()
    data.samples["x"][data.offsets[3]] = torch.nan
    server, client = algorithm("fedavg", Net, epochs=2, batch_size=3, evaluate_every=0)
    cohort = cohort_of(client, data, chunk)
    state = server.round(server.begin(KEY), cohort, KEY)
    assert [(s, c) for s, c, _ in cohort.journal.refused] == [("update", 3)]
    assert cohort.store.take(data.ids).rounds.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert cohort.journal.scalars["fed/clients"] == 9
    others = data.take(torch.tensor([c for c in range(len(data)) if c != 3]))
    expected = server.round(server.begin(KEY), cohort_of(client, others, chunk), KEY)
    for key, value in expected.weights.items():
        assert value.isfinite().all()
        torch.testing.assert_close(state.weights[key], value, atol=1e-13, rtol=1e-13)


def test_all_clients_broken_leaves_the_model():
    data = sample_data([2, 2])
    data.samples["y"][:] = torch.inf
    server, client = algorithm("fedavg", Linear)
    state, journals = run(server, client, data, 1)
    assert torch.equal(state.weights["w"], server.begin(KEY).weights["w"])
    assert len(journals[0].refused) >= 2


def test_part_of_the_clients_takes_part():
    data = sample_data([4] * 20)
    server, client = algorithm("fedavg", Linear, fraction=0.25)
    _, journals = run(server, client, data, 2)
    assert [journal.scalars["fed/clients"] for journal in journals] == [5, 5]


def test_ledger_counts_every_parameter():
    data = sample_data([4, 4])
    server, client = algorithm("fedavg", Net, evaluate_every=0)
    cohort = cohort_of(client, data)
    server.round(server.begin(KEY), cohort, KEY)
    n_parameters = 3 * 4 + 4 + 4 + 1
    assert cohort.ledger.bytes("down") == 2 * n_parameters * 8
    assert cohort.ledger.bytes("up") == 2 * (n_parameters * 8 + 8 + 8)


def test_clipping_bounds_the_whole_model():
    data = sample_data([4])
    server, client = algorithm("fedavg", Net, lr=0.5)
    cohort = cohort_of(client, data, middleware=(Clip(1e-3),))
    before = server.begin(KEY)
    after = server.round(before, cohort, KEY)
    moved = sum((after.weights[k] - v).square().sum() for k, v in before.weights.items())
    assert float(moved.sqrt()) == pytest.approx(1e-3)


def test_frozen_parameters_stay_and_do_not_travel():
    class Half(Net):
        def __init__(self):
            super().__init__()
            self.hidden.requires_grad_(False)

    server, client = algorithm("fedavg", Half, lr=0.01)
    assert list(server.begin(KEY).weights) == ["out.weight", "out.bias"]
    _, journals = run(server, client, sample_data(), 3)
    losses = [journal.scalars["eval/global_loss"] for journal in journals]
    assert losses == sorted(losses, reverse=True)


def test_a_batch_of_another_form():
    class Tupled(Net):
        def loss(self, batch):
            x, y = batch
            return super().loss({"x": x, "y": y})

    data = sample_data()
    server, client = algorithm("fedavg", Net, epochs=2, batch_size=3)
    other = FedAvgClient(Tupled(), server.settings, as_batch=lambda batch: (batch["x"], batch["y"]))
    expected, _ = run(server, client, data, 1)
    found, _ = run(server, other, data, 1)
    assert all(torch.equal(found.weights[k], v) for k, v in expected.weights.items())


def test_the_same_seed_gives_the_same_model():
    server, _ = algorithm("fedavg", Net)
    torch.rand(3)
    first = server.begin(KEY).weights
    before = torch.get_rng_state()
    second = server.begin(KEY).weights
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(server.begin(KEY.fold(1)).weights["out.bias"], first["out.bias"])


def test_batch_normalisation_and_empty_modules_are_refused():
    class Normed(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

    with pytest.raises(UserError, match="'norm' is batch normalisation"):
        ScaffoldClient(Normed(), ScaffoldSettings())
    with pytest.raises(UserError, match="Identity has no parameters"):
        FedAvgServer(nn.Identity, FedAvgSettings()).begin(KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fraction": 0.0},
        {"fraction": 1.1},
        {"epochs": 0},
        {"rounds": 0},
        {"batch_size": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"evaluate_every": -1},
        {"mu": -1.0},
        {"mu": float("inf")},
    ],
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        FedProxSettings(**wrong)


def test_lightning_drives_it(tmp_path):
    from lightning import Trainer

    from coterie.core.run.driver import FederatedRun
    from coterie.core.training.module import FederatedModule

    server, client = algorithm("fedavg", Linear, rounds=4)
    module = FederatedRun(
        Federation(server, client, [SplitSamples.of(sample_data(), sample_data())], rounds=4)
    )
    trainer = Trainer(
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        num_sanity_val_steps=0,
    )
    trainer.fit(FederatedModule(module))
    losses = [record["eval/global_loss"] for record in module.history]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
