"""Every multi-task network under an ordinary Trainer finds what `central` and `local` find."""

import pytest
import torch
from tests.core.front.fitted import apart, rounds, trained, trainer

import coterie

NETWORKS = ("template", "single-task", "mmoe", "ple", "esmm", "aitm", "star", "aesm2", "pepnet")
SMALL = {"experts": 3, "expert_layers": [16, 8], "tower_layers": [8, 4]}


def model(name):
    return {"model": {"name": name, **SMALL}, "train": {"batch_size": 1024}}


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_all_scenarios_in_one_place_as_the_row_central(name):
    """Plain torch on one side, the core's optimizers and kernels on the other; dropout is on."""
    module, logged = trained(2, "pf-msmtrec", **model(name))
    row = rounds(2, "pf-msmtrec", "central", **model(name))
    state = row.server_state
    assert apart(module, {**state.weights, **state.statistics}) < 1e-8
    assert logged["fed/loss"] < row.history[0]["fed/loss"]
    for key in ("fed/loss", "eval/loss", "eval/auc", "eval/auc_ctcvr", "eval/global_auc_ctr"):
        assert logged[key] == pytest.approx(row.history[-1][key], abs=1e-6)


def test_several_local_epochs_are_epochs_of_the_trainer():
    how = {**model("ple"), "central": {"epochs": 2}}
    module, _ = trained(4, "pf-msmtrec", **how)
    state = rounds(2, "pf-msmtrec", "central", **how).server_state
    assert apart(module, {**state.weights, **state.statistics}) < 1e-8


@pytest.mark.parametrize("name", ["mmoe", "star"])
def test_one_scenario_alone_as_the_row_local(name):
    module, logged = trained(2, "pf-msmtrec", client=1, **model(name))
    row = rounds(2, "pf-msmtrec", "local", **model(name))
    mine = row.store.take(torch.tensor([1]))
    own = {**mine.personal, **mine.statistics}
    assert apart(module, {key: value[0] for key, value in own.items()}) < 1e-8
    _, values = row.journal.clients["eval/personal_auc_ctr"]
    assert logged["eval/auc_ctr"] == pytest.approx(float(values[1]), abs=1e-6)


def test_tests_are_measured_as_the_row_measures_them():
    module, data = coterie.network("pf-msmtrec", **model("ple"))
    trainer(1).fit(module, data)
    tested = trainer().test(module, data, verbose=False)[0]
    row = rounds(1, "pf-msmtrec", "central", engine={"device": "cpu"}, **model("ple")).history[-1]
    assert {"test/loss", "test/auc", "test/auc_ctr", "test/global_auc"} <= tested.keys()
    assert tested["test/auc"] == pytest.approx(row["test/auc"], abs=2e-3)


def test_large_tables_are_stepped_by_the_rows_that_a_batch_has(monkeypatch):
    """Their gradients are sparse, which no optimizer of torch takes beside dense ones."""
    monkeypatch.setattr("coterie.msmt.models.base.SPARSE_FROM", 15)
    module, logged = trained(2, "pf-msmtrec", **model("esmm"))
    assert any(table.sparse for table in module.network.inputs.tables)
    row = rounds(2, "pf-msmtrec", "central", **model("esmm"))
    state = row.server_state
    assert apart(module, {**state.weights, **state.statistics}) < 1e-8
    assert logged["eval/auc"] == pytest.approx(row.history[-1]["eval/auc"], abs=1e-6)
    clipped = model("esmm")
    clipped["train"] = {**clipped["train"], "clip": 1.0}
    with pytest.raises(coterie.UserError, match="sparse"):
        coterie.network("pf-msmtrec", **clipped)
