"""The backbones under an ordinary Trainer find what rounds of the federation find."""

import lightning
import pytest
import torch
from tests.core.front.fitted import DOUBLE, rounds, trained, trainer

import coterie
from coterie.continual.by_trainer import BackboneTraining, standalone
from coterie.continual.experiment import Experiment
from coterie.continual.local_training import LocalTraining
from coterie.continual.tables.references import central_run

BACKBONES = ("fedmf", "fedncf", "pfedrec")


def step(found: BackboneTraining, optimizer: torch.optim.Optimizer, number: int) -> float:
    def closure():
        optimizer.zero_grad()
        loss = found.loss(found.batch(number))
        loss.backward()
        return loss

    return float(optimizer.step(closure).detach())


def of_first_block(client: int | None, **model) -> tuple[Experiment, BackboneTraining]:
    settings = coterie.settings("f3crec", method="ft", engine=DOUBLE, model=model)
    experiment = Experiment(settings)
    first = experiment.stream.blocks[0]
    sizes = first.n_users, first.n_items
    found = standalone(experiment.settings, experiment.blocks[:1], sizes, client, None)
    assert isinstance(found, BackboneTraining)
    return experiment, found


@pytest.mark.parametrize("name", BACKBONES)
def test_epochs_of_all_users_are_rounds_of_the_federation(name):
    """Autograd over all users' pairs, against outer products by user, uploads and their mean."""
    model = {"name": name, "batch_size": 10_000}  # so that nobody makes a second step
    _, found = of_first_block(None, **model)
    row = rounds(3, "f3crec", "ft", model=model)
    optimizer = found.optimizer()
    losses = [step(found, optimizer, number) for number in range(3)]
    assert losses == pytest.approx([one["fed/loss"] for one in row.history], rel=1e-10)
    assert losses[-1] < losses[0]
    assert torch.allclose(found.network.items, row.server_state.items, rtol=0, atol=1e-10)
    private = row.store.take(row.newest_cohort().ids).params
    for key, value in found.network.private.items():
        assert torch.allclose(value, private[key], rtol=0, atol=1e-10), key


@pytest.mark.parametrize("name", BACKBONES)
def test_a_user_alone_is_its_local_training(name):
    """With batches of 16 and two local epochs, a user makes a dozen steps."""
    experiment, found = of_first_block(3, name=name, batch_size=16, epochs=2)
    client, table = experiment.client(), found.network.items.detach().clone()
    private = {key: value.detach().clone() for key, value in found.network.private.items()}
    rates = client.item_lr(table.shape[0])
    local = LocalTraining(client.backbone, table, private, found._batches(0), rates).run()
    optimizer, steps = found.optimizer(), 2 * found.per_epoch
    assert steps > 4
    for number in range(steps):
        step(found, optimizer, number)
    changed = found.network.items - table
    assert torch.allclose(changed, local.rows.sum(), rtol=0, atol=1e-9)
    for key, value in found.network.private.items():
        assert torch.allclose(value, local.params[key], rtol=0, atol=1e-9), key


@pytest.mark.parametrize("name", BACKBONES)
def test_a_trainer_fits_all_blocks_and_measures_the_last(name):
    _, first = trained(1, "f3crec", model={"name": name})
    module, logged = trained(4, "f3crec", model={"name": name})
    assert logged["fed/loss"] < first["fed/loss"]
    assert {"eval/ndcg@20", "eval/recall@20", "eval/ndcg@20_worst10"} <= set(logged)
    tested = trainer().test(module, module.data, verbose=False)[0]
    assert {"test/block3/ndcg@20", "test/block3/recall@20_unseen"} <= set(tested)
    train = sum(block.train.values.numel() for block in Experiment(_settings()).blocks)
    labels = sum(int(batch.label.sum()) for batch in module.data.train_dataloader())
    assert 0 < labels <= train


def _settings():
    return coterie.settings("f3crec", method="ft")


def test_bpr_is_the_central_row_of_the_tables():
    """The row chooses its epoch by validation, among those that the Trainer has."""
    settings = coterie.settings("f3crec", method="ft")
    row = central_run(settings).metrics["valid/block3/ndcg@20"]
    module, data = coterie.network("f3crec", network="mf")
    seen = []

    class Note(lightning.Callback):
        def on_validation_end(self, driver, _):
            seen.append(float(driver.callback_metrics["eval/ndcg@20"]))

    trainer(20, callbacks=[Note()], num_sanity_val_steps=0).fit(module, data)
    assert min(abs(value - row) for value in seen) < 1e-5


def test_one_user_is_trained_alone():
    users = Experiment(_settings()).blocks[-1].ids
    module, logged = trained(3, "f3crec", client=int(users[0]))
    assert module.network.private["user"].shape[0] == 1
    assert logged["fed/loss"] < 0.7
    assert "eval/ndcg@20" in logged


def test_two_steps_in_a_batch_do_not_add_up():
    module, data = coterie.network("f3crec", model={"name": "pfedrec", "batch_size": 64})
    with pytest.raises(coterie.UserError, match="accumulate_grad_batches at 1"):
        trainer(2, accumulate_grad_batches=2).fit(module, data)
