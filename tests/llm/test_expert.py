"""The expert beside a backbone: formula, training, and every way that a trained one goes."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.llm.every_backbone import KINDS, TITLES, make
from tests.llm.exported import export_adapter
from tests.llm.organisations import examples, federation, queries, settings, whole_rows
from torch.nn.functional import cross_entropy

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.algorithm import make_server
from coterie.llm.backbone import WEIGHTS
from coterie.llm.backbone_settings import BackboneName, ExpertSettings
from coterie.llm.backbones.expert import Expert, make_expert
from coterie.llm.client import make_client
from coterie.llm.data.catalogue import Catalogue, ItemWords
from coterie.llm.experiment import Experiment
from coterie.llm.export import EXPERT
from coterie.llm.paper import PAPER
from coterie.llm.readings import resolve
from coterie.llm.trained_run import TrainedRun

KEY = Key.from_seed(3)
COUNTS = list(range(len(TITLES)))
ITEMS = Catalogue(len(TITLES), "a test", titles=TITLES, popularity=COUNTS, newer=[5] * len(TITLES))
HOW = ExpertSettings(scale=4.0, backbone=0.3, popularity=0.2, decay=0.5)


def with_expert(kind="tiny-item", expert="both", **how):
    model = make(kind, **how)
    model.expert = make_expert(expert, ITEMS, HOW)
    return model


def test_none_is_nothing_at_all():
    assert make_expert("none", ITEMS, HOW) is None
    chosen = settings()
    assert chosen.model.expert == "none"


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_formula_s(kind):
    history = Ragged.from_lists([[0, 3, 5], [7], []])
    plain, model = make(kind).eval(), with_expert(kind).eval()
    plain.prepare()
    model.prepare()
    cosine = ItemWords(TITLES).of_histories(history, 0.5).numpy()
    bias = 0.2 * np.log1p(COUNTS)
    own = plain.scores(history).double().numpy()
    expected = 4.0 * (cosine + bias) + 0.3 * own
    np.testing.assert_allclose(model.scores(history).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert not model.scores(history).requires_grad
    for expert, part in (("titles", cosine), ("popularity", bias)):
        model.expert = make_expert(expert, ITEMS, HOW)
        found = model.scores(history).numpy()
        np.testing.assert_allclose(found, 4.0 * part + 0.3 * own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_of_the_target_alone_and_trains_both(kind):
    data, model = examples(5, seed=1), with_expert(kind).eval()
    model.prepare()
    model.loss(data).backward()
    if kind == "tiny-text":  # what it writes has no gradient: each has a loss of its own
        alone = 4.0 * (ItemWords(TITLES).of_histories(data.history, 0.5) + model.expert.bias)
        expected = model.network_loss(data) + cross_entropy(alone, data.target)
    else:
        expected = cross_entropy(model.scores(data.history), data.target)
    assert float(model.loss(data).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    named = dict(model.named_parameters())
    assert bool(named["expert.bias"].grad.any())
    assert any(bool(p.grad.any()) for name, p in named.items() if "lora_B" in name)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(UserError, match="a test has no genres"):
        make_expert("titles", replace(ITEMS, titles=None), HOW)
    with pytest.raises(UserError, match="no counts of public users"):
        make_expert("both", replace(ITEMS, popularity=None), HOW)


def one_round(method):
    server, cohort = federation(settings(method), with_expert().double())
    return whole_rows(server.round(server.begin(KEY), cohort, KEY), cohort)


def test_bias_and_adapter_are_trained_by_every_client_and_averaged():
    alone, together = one_round("local"), one_round("fedavg")
    sizes = torch.tensor([9.0, 5.0, 7.0]).double()  # of `organisations`
    torch.testing.assert_close(together[1], (sizes / sizes.sum()) @ alone)
    start = 0.2 * torch.tensor(COUNTS).double().log1p()
    bias = alone[:, -len(TITLES) :]
    assert bool(((bias - start).abs() > 1e-4).all())
    assert float((bias - start).abs().max()) < 0.1
    mixed = one_round("pplr")
    assert not torch.allclose(mixed[0], mixed[1])
    assert float(mixed[:, -1].max()) <= float(alone[:, -1].max())


def test_an_exported_expert_comes_back(tmp_path):
    from tests.llm.test_export import items

    model = with_expert()
    trained = model.expert.bias.data + 1.0
    model.expert.bias.data.copy_(trained)
    export_adapter(model, examples(5, seed=1), items(), tmp_path / "a")
    with safe_open(tmp_path / "a" / EXPERT, "pt") as file:
        assert torch.equal(file.get_tensor("bias"), trained)
        assert file.metadata() == {"scale": "4.0", "backbone": "0.3", "decay": "0.5"}
    assert torch.equal(model.expert.bias, trained)
    head, first = (tmp_path / "a" / "items.csv").read_text().splitlines()[:2]
    assert (head, first) == ("number,item,title,words", f"0,i0,{TITLES[0]},{TITLES[0]}")


FLAGS = ["--model.width=8", "--model.layers=1", "--pretrain.steps=3", "--data.stride=30"]


def chosen(out, *more):
    flags = [*FLAGS, "--model.expert=both", "--rounds=2", f"--run.out={out}", *more]
    return configure(PAPER, flags).settings


def test_a_run_is_resumed_to_the_same_end_and_apart_halves_agree(tmp_path):
    experiment = Experiment(chosen(tmp_path))
    whole = FederatedRun(experiment.federation())
    whole.advance()
    halfway = whole.to_plain()
    later = FederatedRun(Experiment(chosen(tmp_path)).federation())
    later.load_plain(halfway)
    for module in (whole, later):
        module.advance()
    assert torch.equal(later.server_state.rows, whole.server_state.rows)
    assert later.results == whole.results
    folder = tmp_path / "client"
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(experiment.public_files()[WEIGHTS].read_bytes())
    client = make_client(experiment.card, folder)
    server = make_server(experiment.card, experiment.data.clients.ids, folder)
    assert torch.equal(server.start, whole.federation.server.start)
    history = queries(3, seed=1).history
    row = whole.server_state.best[2]
    found = client.score(2, row, history)
    assert torch.equal(found, whole.federation.client.score(2, row, history))
    assert found.shape == (3, experiment.data.n_items)


def test_counts_of_private_users_do_not_reach_the_card(tmp_path):
    experiment = Experiment(chosen(tmp_path))
    data, items = experiment.data, experiment.card.public["items"]
    public = torch.nonzero(data.client_of == -1).flatten().tolist()
    rows = [data.split.train.tolists()[user] for user in public]
    counts = [sum(item in row for row in rows) for item in range(data.n_items)]
    assert items["popularity"] == counts
    assert sum(counts) < 0.4 * data.split.train.values.numel()


def test_a_split_model_keeps_the_expert_with_the_client(tmp_path):
    flags = ["--model.layers=3", "--engine.dtype=float64"]
    whole, split = (
        FederatedRun(Experiment(chosen(tmp_path, *flags, *more)).federation())
        for more in ([], ["--split.k=1"])
    )
    for module in (whole, split):
        while not module.finished:
            module.advance()
    assert split.results == pytest.approx(whole.results, abs=1e-12)


def test_a_trained_run_is_opened_with_its_expert(tmp_path):
    from coterie.core.training.train import train

    folder = tmp_path / "pplr" / "own"
    train(PAPER, chosen(tmp_path, "--run.name=own", "--run.progress=false", "--logger.wandb=off"))
    run = TrainedRun(folder)
    assert run.experiment.settings.model.expert == "both"
    backbone = run.backbone(1)
    assert isinstance(backbone.expert, Expert)
    start = 0.1 * run.experiment.data.public_counts().double().log1p()
    assert not torch.allclose(backbone.expert.bias.double(), start, atol=1e-4)


@pytest.mark.usefixtures("own_backbones")
def test_the_backbone_in_the_cache_does_not_depend_on_the_expert(tmp_path):
    with_one = Experiment(chosen(tmp_path)).public_files()[WEIGHTS]
    without = Experiment(chosen(tmp_path, "--model.expert=none")).public_files()[WEIGHTS]
    assert with_one == without


@pytest.mark.parametrize("data", ["sample", "ml-100k", "amazon-titles"])
def test_every_backbone_goes_with_the_variant_best(data):
    for name in get_args(BackboneName):
        flags = ["--variant", "best", "--model.name", name, "--data", data]
        flags += ["--model.path", "a/model"] if name == "llama" else []
        settings = resolve(configure(PAPER, flags).settings)
        assert settings.model.expert == "both"
