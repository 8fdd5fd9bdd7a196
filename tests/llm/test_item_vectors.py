"""Dense vectors of an encoder beside the words of an expert."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.llm.every_backbone import TITLES, make
from tests.llm.organisations import examples
from tests.llm.test_expert import FLAGS, HOW, ITEMS
from tests.llm.tiny_encoder import folder

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.algorithm import make_server
from coterie.llm.backbone import WEIGHTS
from coterie.llm.backbone_settings import ModelSettings
from coterie.llm.backbones.encoder import load_encoder
from coterie.llm.backbones.expert import ItemVectors, make_expert
from coterie.llm.client import make_client
from coterie.llm.data.catalogue import ItemWords
from coterie.llm.experiment import Experiment
from coterie.llm.export import EXPERT, export_adapter
from coterie.llm.paper import PAPER

KEY = Key.from_seed(7)
HISTORY = Ragged.from_lists([[0, 3, 5], [7], []])
WORDS = sorted({word for title in TITLES for word in title.lower().split()})


def unit_rows(width=5):
    return torch.nn.functional.normalize(KEY.fold("rows").normal(len(TITLES), width), dim=1)


def beside(vectors, dense=0.25):
    model = make("tiny-item")
    how = replace(HOW, vectors="minilm", dense=dense)
    model.expert = make_expert("both", ITEMS, how, vectors)
    return model.eval()


def test_scores_are_the_formula_s():
    vectors = unit_rows()
    plain, model = make("tiny-item").eval(), beside(ItemVectors(vectors, "a digest"))
    for one in (plain, model):
        one.prepare()
    rows, found = vectors.double().numpy(), np.zeros((3, len(TITLES)))
    for place, history in enumerate(HISTORY.tolists()):
        user = sum((0.5**age * rows[i] for age, i in enumerate(reversed(history))), 0 * rows[0])
        if history:
            found[place] = rows @ user / np.linalg.norm(user)
    words = ItemWords(TITLES).of_histories(HISTORY, 0.5).numpy()
    bias = 0.2 * np.log1p(range(len(TITLES)))
    expected = 4 * (words + 0.25 * found + bias) + 0.3 * plain.scores(HISTORY).double().numpy()
    np.testing.assert_allclose(model.scores(HISTORY).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert model.constants() == {"vectors": "a digest"}
    assert [n for n, p in model.expert.named_parameters() if p.requires_grad] == ["bias"]


def test_an_exported_expert_comes_back_with_its_vectors(tmp_path):
    from tests.llm.test_export import ORIGIN, items

    vectors = unit_rows()
    model = beside(ItemVectors(vectors, "a digest"))
    model.expert.bias.data += 1.0
    export_adapter(model, examples(5, seed=1), items(), ORIGIN, tmp_path / "a")
    assert torch.equal(load_file(tmp_path / "a" / EXPERT)["vectors"], vectors)
    assert torch.equal(model.expert.vectors.vectors, vectors)


def test_without_another_expert_they_are_refused():
    for more in ([], ["--model.expert", "popularity"]):
        settings = configure(PAPER, ["--expert.vectors", "minilm", *more]).settings
        with pytest.raises(UserError, match=r"'expert\.vectors' has no effect"):
            Experiment(settings)


def experiment(out: Path, *more: str) -> Experiment:
    flags = [*FLAGS, "--model.expert=both", "--rounds=1", f"--run.out={out}", *more]
    return Experiment(configure(PAPER, flags).settings)


def sample_encoder(path: Path, seed: int = 0) -> Path:
    """One that knows the sample's words; another seed, other weights."""
    words = {w for text in experiment(path).data.catalogue.words() for w in text.split()}
    return folder(path / f"model{seed}", words=sorted(words), initializer_range=0.5 + seed)


def test_a_run_has_them_and_so_has_a_party_apart(tmp_path):
    made = sample_encoder(tmp_path)
    one = experiment(tmp_path, f"--expert.vectors={made}")
    texts = one.data.catalogue.words()
    encoder = load_encoder(str(made), texts, ModelSettings(name="encoder"))
    encoder.settle()
    encoder.prepare()
    held = one.backbone.expert.vectors
    assert torch.equal(held.vectors, encoder.catalogue())
    assert sorted(one.backbone.constants()) == ["backbone", "vectors"]
    run = FederatedRun(one.federation())
    while not run.finished:
        run.advance()
    none = FederatedRun(experiment(tmp_path).federation())
    while not none.finished:
        none.advance()
    assert run.results != none.results
    parts = []
    for name in ("client", "server"):
        apart = tmp_path / name
        apart.mkdir()
        (apart / WEIGHTS).write_bytes(one.public_files()[WEIGHTS].read_bytes())
        parts.append(apart)
    client = make_client(one.card, parts[0])
    server = make_server(one.card, one.data.clients.ids, parts[1])
    assert client.constants() == server.constants() == one.backbone.constants()
    row, history = run.server_state.best[2], HISTORY
    assert torch.equal(client.score(2, row, history), run.federation.client.score(2, row, history))


def test_other_weights_are_other_constants(tmp_path):
    one, other = (
        experiment(tmp_path, f"--expert.vectors={sample_encoder(tmp_path, seed)}")
        for seed in (0, 1)
    )
    first, second = one.backbone.constants(), other.backbone.constants()
    assert first["backbone"] == second["backbone"]
    assert first["vectors"] != second["vectors"]
