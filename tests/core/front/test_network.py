"""`coterie.network`: a paper's network under an ordinary Trainer, with all that one is used to."""

import re
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tests.core.front.fitted import trainer
from torch.utils.data import DataLoader

import coterie
from coterie.core.registry.papers import Paper
from coterie.core.run.networks import method_by_itself
from coterie.core.training.network_module import Epochs, NetworkModule

SMALL = {"model": {"name": "ple", "experts": 3, "expert_layers": [8], "tower_layers": [4]}}


def small(**more):
    return coterie.network("pf-msmtrec", train={"batch_size": 512}, **SMALL, **more)


def parameters(module):
    return torch.cat([value.detach().flatten() for value in module.network.parameters()])


# What it is


def test_it_is_lightning_through_and_through():
    module, data = small()
    assert isinstance(module, lightning.LightningModule)
    assert isinstance(data, lightning.LightningDataModule)
    assert isinstance(module.network, torch.nn.Module)
    assert type(data.train_dataloader()) is DataLoader
    assert module.hparams["model.name"] == "ple"
    assert module.hparams["paper"] == "pf-msmtrec"
    assert isinstance(module.configure_optimizers(), torch.optim.Adam)
    assert module.configure_optimizers().param_groups[0]["lr"] == module.hparams["train.lr"]
    assert module.monitor.key == "eval/auc"


def test_callbacks_loggers_and_checkpoints_work_as_they_come(tmp_path):
    module, data = small()
    key, mode = module.monitor.key, module.monitor.summary
    best = ModelCheckpoint(tmp_path, monitor=key, mode=mode)
    callbacks = [best, EarlyStopping(key, mode=mode, patience=3)]
    logger = CSVLogger(tmp_path)
    driver = trainer(3, callbacks=callbacks, logger=logger, enable_checkpointing=True)
    driver.fit(module, data)
    assert float(best.best_model_score) == pytest.approx(float(driver.callback_metrics[key]), abs=1)
    head = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    assert {"fed/loss", "eval/auc", "eval/auc_ctr", "eval/global_auc"} <= set(head.split(","))
    tested = trainer().test(module, data, verbose=False)[0]
    assert {"test/auc", "test/loss", "test/auc_ctcvr"} <= set(tested)


def test_a_checkpoint_makes_network_and_data_again(tmp_path):
    module, data = small(client=2)
    driver = trainer(2, callbacks=[ModelCheckpoint(tmp_path)], enable_checkpointing=True)
    driver.fit(module, data)
    path = driver.checkpoint_callback.best_model_path
    again = NetworkModule.load_from_checkpoint(path)
    assert torch.equal(parameters(again), parameters(module))
    found = [trainer().test(each, each.data, verbose=False)[0] for each in (module, again)]
    assert found[0] == found[1]


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_training_that_goes_on_is_as_if_it_had_not_stopped(tmp_path, workers):
    whole, data = small()
    trainer(4).fit(whole, data)
    first, data = small(num_workers=workers)
    driver = trainer(2, callbacks=[ModelCheckpoint(tmp_path)], enable_checkpointing=True)
    driver.fit(first, data)
    second, data = small(num_workers=workers)
    trainer(4).fit(second, data, ckpt_path=driver.checkpoint_callback.best_model_path)
    assert not torch.equal(parameters(first), parameters(second))
    assert torch.equal(parameters(whole), parameters(second))


# Batches


@pytest.mark.long
@pytest.mark.parametrize(("paper", "more"), [("pf-msmtrec", SMALL), ("f3crec", {"network": "mf"})])
def test_workers_change_nothing(paper, more):
    found = []
    for workers in (0, 2):
        module, data = coterie.network(paper, num_workers=workers, **more)
        trainer(2).fit(module, data)
        found.append(parameters(module))
    assert torch.equal(*found)


@pytest.mark.parametrize("paper", ["pf-msmtrec", "f3crec", "mtal", "page"])
def test_neither_loaders_nor_steps_draw_from_the_global_generator(paper):
    module, data = coterie.network(paper)
    before = torch.get_rng_state()
    for batch in data.train_dataloader():
        module.standalone.loss(batch)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_draws_anew_and_again_the_same():
    _, data = small()
    loader = data.train_dataloader()
    first, second = ([batch["labels"] for batch in loader] for _ in range(2))
    loader.sampler.set_epoch(0)
    again = [batch["labels"] for batch in loader]
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, second))
    assert sum(map(len, first)) == sum(map(len, second)) == 7500  # all samples of the sample


def test_the_sampler_counts_where_nobody_says_the_epoch():
    order = Epochs(3)
    assert [list(order), list(order)] == [[0, 1, 2], [3, 4, 5]]
    order.set_epoch(5)
    assert list(order) == [15, 16, 17]


# What a Trainer can do


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16-mixed"},
        {"accumulate_grad_batches": 2},
        {"gradient_clip_val": 0.5},
        {"fast_dev_run": True},
        {"overfit_batches": 1},
        {"limit_val_batches": 1, "limit_train_batches": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["mmoe", "ple"])
def test_options_of_the_trainer_act(options, name):
    module, data = coterie.network("pf-msmtrec", model={"name": name})
    before = parameters(module)
    driver = trainer(1, **options)
    driver.fit(module, data)
    assert float(driver.callback_metrics["fed/loss"]) == pytest.approx(1.0, abs=1)
    assert not torch.equal(before, parameters(module))


def test_clipping_is_the_settings_unless_the_trainer_says_more():
    """A step of SGD is as long as its rate times the gradient."""
    found = []
    for options, clip in (({}, 1e-3), ({"gradient_clip_val": 1e-4}, 1e-3), ({}, None)):
        train = {"clip": clip, "lr": 0.5, "weight_decay": 0.0}
        module, data = coterie.network("page", train=train)
        before = parameters(module)
        trainer(1, limit_train_batches=1, limit_val_batches=0, **options).fit(module, data)
        found.append(float((parameters(module) - before).norm()) / 0.5)
    assert found[0] == pytest.approx(1e-3, rel=1e-3)
    assert found[1] == pytest.approx(1e-4, rel=1e-2)
    assert found[2] > 1e-2


def test_a_network_of_samples_can_be_federated():
    module, _ = coterie.network("page")
    train = module.standalone._clients.train
    clients = [train.take(torch.tensor([place])).samples for place in range(3)]
    federated = coterie.federate(module.network, clients, rounds=2, lr=0.1, batch_size=10)
    trainer(-1).fit(federated)
    losses = [row["fed/loss"] for row in federated.run.history]
    assert losses[1] < losses[0]
    with pytest.raises(coterie.UserError, match="nobody calls in a client"):
        coterie.federate(module, clients)


def test_the_script_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "lightning.md").read_text()
    scripts = re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M)
    (text,) = [script for script in scripts if "coterie.network(" in script]
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "docs/lightning.md", "exec"), {"__name__": "example"})
    assert "tensor(0." in capsys.readouterr().out


# Mistakes


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"paper": "f3rec"}, "'f3crec'"),
        ({"client": 99}, "there is no client 99: the 4 clients are 0 to 3"),
        ({"client": "one"}, "'client' is the number of one, not 'one'"),
        ({"client": True}, "'client' is the number of one, not True"),
        ({"network": "lightgcn"}, "pf-msmtrec has no network 'lightgcn'"),
        ({"method": "fedavg"}, "'method' has no effect"),
        ({"model": {"nam": "mmoe"}}, "model.name"),
        ({"privacy": {"noise": "gaussian", "scale": 1.0, "clip": 1.0}}, "sends nothing"),
        ({"engine": {"device": "cuda"}}, "accelerator='gpu'"),
        ({"num_worker": 2}, "num_workers"),
    ],
)
def test_mistakes_are_one_line(call, says):
    with pytest.raises(coterie.UserError, match=says) as told:
        coterie.network(**{"paper": "pf-msmtrec", **call})
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_formats_that_the_data_do_not_have_are_refused(precision):
    module, data = small()
    with pytest.raises(coterie.UserError, match="'dtype': 'float64'"):
        trainer(1, precision=precision).fit(module, data)


def test_several_processes_are_refused(monkeypatch):
    module, _ = small()
    driver = trainer(1)
    module._trainer = driver
    monkeypatch.setattr(type(driver), "world_size", 2)
    with pytest.raises(coterie.UserError, match="devices=1"):
        module.setup("fit")


def test_a_paper_may_have_no_network_of_its_own():
    paper = Paper("mine", "mine", "Mine", "", ("mine",), "a:b", "a:b")
    with pytest.raises(coterie.UserError, match="mine has no network that can be trained by"):
        method_by_itself(paper, None)
