"""MTAL's networks under an ordinary Trainer find what `joint` and `alone` find."""

import pytest
import torch
from tests.core.front.fitted import apart, rounds, trained, trainer

import coterie

MODELS = ("aae", "mf", "mlp", "ncf")
TRAIN = {"epochs": 2}


def learned(run, client):
    mine = run.store.take(torch.tensor([client]))
    one = mine[0] if isinstance(mine, list) else mine
    return {name.removeprefix("model."): value for name, value in one.learned.params.items()}


@pytest.mark.parametrize("name", MODELS)
def test_all_data_in_one_place_as_the_row_joint(name):
    """The row's autoencoder has its gradients in closed form on sparse cells; here is autograd."""
    how = {"model": {"name": name}, "train": TRAIN}
    module, logged = trained(4, "mtal", **how)
    row = rounds(2, "mtal", "joint", **how)
    assert apart(module, learned(row, 0)) < 1e-10
    for key in ("eval/rmse", "eval/map@10", "eval/ndcg@10"):
        assert logged[key] == pytest.approx(row.history[-1][key], abs=1e-6)
    assert logged["fed/loss"] < row.history[-1]["fed/loss"]  # the last epoch's of both


@pytest.mark.parametrize("name", ["aae", "mf"])
def test_one_organisation_as_the_row_alone(name):
    how = {"model": {"name": name}, "train": TRAIN}
    module, logged = trained(4, "mtal", client=1, **how)
    row = rounds(2, "mtal", "alone", **how)
    assert apart(module, learned(row, 1)) < 1e-10
    ids, values = row.journal.clients["eval/rmse"]
    assert logged["eval/rmse"] == pytest.approx(float(values[ids == 1]), abs=1e-6)


def test_what_is_hidden_and_known_beside_is_seen_alike():
    """Ratings hidden from the encoder, targets left out, side information; of implicit feedback."""
    how = {
        "train": {"epochs": 1, "hide": 0.3, "own_targets": "hidden"},
        "data": {"feedback": "implicit", "side": True},
    }
    module, logged = trained(2, "mtal", **how)
    row = rounds(2, "mtal", "joint", **how)
    assert apart(module, learned(row, 0)) < 1e-10
    for key in ("eval/map@10", "eval/accuracy"):
        assert logged[key] == pytest.approx(row.history[-1][key], abs=1e-6)
    assert module.monitor.key == "eval/map@10"


def test_a_test_has_the_papers_measures():
    module, data = coterie.network("mtal", model={"name": "mf"})
    trainer(1).fit(module, data)
    tested = trainer().test(module, data, verbose=False)[0]
    assert set(tested) == {"test/rmse", "test/map@10", "test/ndcg@10"}
    row = rounds(20, "mtal", "joint", model={"name": "mf"}, train={"epochs": 1})
    assert tested["test/rmse"] == pytest.approx(row.history[0]["eval/rmse"], abs=0.1)


@pytest.mark.parametrize("name", ["base", "bias"])
def test_what_is_in_closed_form_is_not_trained(name):
    with pytest.raises(coterie.UserError, match=f"'model.name' {name} is in closed form"):
        coterie.network("mtal", model={"name": name})


def test_models_of_samples_are_refused():
    """They are several, and a rate: no network by itself makes their scores."""
    with pytest.raises(coterie.UserError, match=r"'model.name' autorec .*choose aae, mf, mlp or"):
        coterie.network("mtal", model={"name": "autorec"})
