"""PPLR's networks under an ordinary Trainer find what `central`, `local` and the tables find."""

import pytest
from tests.core.front.fitted import rounds, trained, trainer
from tests.llm.organisations import whole_row
from tests.llm.test_model_folders import save

import coterie
from coterie.llm.adapter import Adapter
from coterie.llm.tables.study import REFERENCES

TINY = {"width": 16, "layers": 2}
COMMON = {"train": {"keep_optimizer": True, "batch_size": 256}, "pretrain": {"steps": 3}}


def row_of(module):
    return Adapter(module.network.named_parameters()).row()


def how(tmp_path, **more):
    """Settings of a tiny backbone that is pre-trained in a folder of its own."""
    return {**COMMON, "run": {"out": str(tmp_path)}, **more}


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        {"model": TINY},
        {"model": {**TINY, "trained": "lora"}, "lora": {"dropout": 0.3}},
        {"model": {**TINY, "name": "tiny-text"}, "data": {"valid_users": 1, "shots": 60}},
        {"model": {**TINY, "expert": "both"}},
    ],
    ids=["tiny-item", "lora", "tiny-text", "expert"],
)
@pytest.mark.parametrize("client", [None, 1])
def test_epochs_are_rounds_of_the_rows(tmp_path, more, client):
    """Torch's Adam on the network itself, against the core's on rows; dropout is on."""
    settings = how(tmp_path, **more)
    module, logged = trained(2, "pplr", client=client, **settings)
    run = rounds(2, "pplr", "central" if client is None else "local", **settings)
    place = client or 0
    row = whole_row(run.server_state, run.store, run.federation.client, place)
    assert float((row_of(module) - row).abs().max()) < 1e-8
    for key in ("eval/recall@10", "eval/ndcg@20"):
        ids, values = run.journal.clients[key]
        wanted = run.history[-1][key] if client is None else float(values[ids == client])
        assert logged[key] == pytest.approx(wanted, abs=1e-6, nan_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("client", [None, 1])
def test_a_causal_model_of_a_folder_finds_what_the_row_finds(tmp_path, client):
    folder = save(tmp_path / "model", max_position_embeddings=1024)
    model = {"name": "llama", "path": str(folder), "context": 512}
    settings = how(tmp_path, model=model, data={"valid_users": 1, "shots": 6})
    settings["engine"] = {"device": "cpu"}
    settings["train"] = {**settings["train"], "epochs": 1}  # an epoch of the Trainer
    start = row_of(coterie.network("pplr", client=client, **settings)[0])
    module, _ = trained(1, "pplr", client=client, **settings)
    run = rounds(1, "pplr", "central" if client is None else "local", **settings)
    row = whole_row(run.server_state, run.store, run.federation.client, client or 0)
    change = float((row - start).abs().mean())
    assert change > 0
    # In float32, where a gradient of nothing but rounding is a whole step of Adam.
    assert float((row_of(module) - row).abs().mean()) < 1e-2 * change


@pytest.mark.long
def test_recformer_finds_what_the_row_finds(tmp_path):
    """In float32, where a gradient of nothing but rounding is a whole step of Adam."""
    settings = how(tmp_path, model={**TINY, "name": "recformer"}, engine={"device": "cpu"})
    settings["train"] = {**settings["train"], "stages": 1}
    module, logged = trained(1, "pplr", **settings)
    run = rounds(1, "pplr", "central", **settings)
    assert float((row_of(module) - run.server_state.rows[0]).abs().mean()) < 1e-4
    assert logged["eval/ndcg@20"] == pytest.approx(run.history[-1]["eval/ndcg@20"], abs=5e-3)
    again, logged = trained(3, "pplr", **settings)
    assert logged["fed/loss"] < run.history[0]["fed/loss"]
    tested = trainer().test(again, again.data, verbose=False)[0]
    assert set(tested) == {f"test/{name}@{k}" for name in ("recall", "ndcg") for k in (10, 20)}


@pytest.mark.parametrize("name", ["mf", "lightgcn"])
def test_mf_and_lightgcn_are_the_rows_of_the_tables(name):
    """With one epoch, so that there is nothing to choose by validation."""
    own = {name: {"epochs": 1, "batch_size": 200}}
    if name == "mf":
        own["mf"]["fold_in"] = 0
    row = REFERENCES[name](coterie.settings("pplr", method="central", **own)).metrics
    module, data = coterie.network("pplr", network=name, **own)
    trainer(1, num_sanity_val_steps=0).fit(module, data)
    tested = trainer().test(module, data, verbose=False)[0]
    assert {key: row[key] for key in tested} == pytest.approx(tested, abs=1e-6)
    found, fresh = module.standalone, coterie.network("pplr", network=name, **own)[0]
    fresh.load_state_dict(module.state_dict())  # trained on the graph of train, after a test too
    assert float(found.loss(found.batch(0))) == float(fresh.standalone.loss(found.batch(0)))


def test_an_organisation_has_a_lightgcn_of_its_users():
    whole, _ = coterie.network("pplr", network="lightgcn")
    module, logged = trained(2, "pplr", network="lightgcn", client=1)
    assert module.network.n_users < whole.network.n_users
    assert {"eval/recall@10", "fed/loss"} <= set(logged)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"split": {"k": 1}}, "'split.k' parts a model"),
        (
            {"model": {**TINY, "expert": "popularity"}, "expert": {"counts": "everybody"}},
            "'expert.counts' everybody is of clients",
        ),
    ],
)
def test_what_needs_others_is_refused(tmp_path, more, says):
    with pytest.raises(coterie.UserError, match=says):
        coterie.network("pplr", **how(tmp_path, **{"model": TINY, **more}))
