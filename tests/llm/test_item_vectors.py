"""Dense vectors of an encoder beside the words of an expert."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.llm.every_backbone import TITLES, make
from tests.llm.exported import export_adapter
from tests.llm.organisations import examples
from tests.llm.test_expert import FLAGS, HOW, ITEMS
from tests.llm.tiny_encoder import folder
from transformers import BertModel

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.run.lasting import located
from coterie.core.settings.configuration import configure
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.algorithm import make_server
from coterie.llm.backbone import WEIGHTS, item_vectors
from coterie.llm.backbone_settings import ModelSettings
from coterie.llm.backbones.encoder import load_encoder
from coterie.llm.backbones.expert import ItemVectors, make_expert
from coterie.llm.client import make_client
from coterie.llm.data.catalogue import ItemWords
from coterie.llm.experiment import Experiment
from coterie.llm.export import EXPERT
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
    from tests.llm.test_export import items

    vectors = unit_rows()
    model = beside(ItemVectors(vectors, "a digest"))
    model.expert.bias.data += 1.0
    export_adapter(model, examples(5, seed=1), items(), tmp_path / "a")
    assert torch.equal(load_file(tmp_path / "a" / EXPERT)["vectors"], vectors)
    assert torch.equal(model.expert.vectors.vectors, vectors)


def test_without_another_expert_they_are_refused():
    for more in ([], ["--model.expert", "popularity"]):
        settings = configure(PAPER, ["--expert.vectors", "minilm", *more]).settings
        with pytest.raises(UserError, match=r"'expert\.vectors' has no effect"):
            Experiment(settings)
    settings = configure(PAPER, ["--expert.dense", "0.1", "--model.expert", "both"]).settings
    with pytest.raises(UserError, match=r"'expert\.dense' has no effect without vectors"):
        Experiment(settings)


def experiment(out: Path, *more: str) -> Experiment:
    flags = [*FLAGS, "--model.expert=both", "--rounds=1", f"--run.out={out}", *more]
    return Experiment(configure(PAPER, flags).settings)


def known_words(path: Path, seed: int = 0) -> Path:
    """An encoder that knows the sample's words; another seed, other weights."""
    words = {w for text in experiment(path).data.catalogue.words() for w in text.split()}
    return folder(path, words=sorted(words), initializer_range=0.5 + seed)


def test_a_run_has_them_and_so_has_a_party_apart(tmp_path):
    made = known_words(tmp_path / "model")
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


def test_a_party_with_another_encoder_is_refused(tmp_path):
    made = known_words(tmp_path / "here")
    one = experiment(tmp_path, f"--expert.vectors={made}")
    apart = tmp_path / "client"
    apart.mkdir()
    (apart / WEIGHTS).write_bytes(one.public_files()[WEIGHTS].read_bytes())
    card = one.card
    make_client(card, apart)
    known_words(tmp_path / "here", seed=1)
    with pytest.raises(UserError, match=r"of 'expert\.vectors' here, or its tokenizer, is not"):
        make_client(card, apart)
    other = experiment(tmp_path, f"--expert.vectors={made}").backbone.constants()
    assert other["backbone"] == one.backbone.constants()["backbone"]
    assert other["vectors"] != one.backbone.constants()["vectors"]


def test_a_folder_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enc").mkdir()
    chosen = experiment(tmp_path, "--expert.vectors=enc").settings
    assert located(chosen).expert.vectors == str(tmp_path / "enc")
    assert located(experiment(tmp_path, "--expert.vectors=minilm").settings).expert.vectors == (
        "minilm"
    )


def test_half_precision_is_read_as_the_run_computes(tmp_path):
    made = known_words(tmp_path / "model")
    model = BertModel.from_pretrained(str(made))
    model.to(torch.bfloat16).save_pretrained(str(tmp_path / "half"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "half" / file).write_bytes((made / file).read_bytes())
    model.float().save_pretrained(str(made))  # the same weights
    found = [
        item_vectors(one.settings, one.data.catalogue).vectors
        for path in (made, tmp_path / "half")
        for one in [experiment(tmp_path, f"--expert.vectors={path}")]
    ]
    assert found[1].dtype == torch.float32
    assert torch.equal(*found)


def test_minilm_is_the_package_unless_a_folder_has_its_name(tmp_path, monkeypatch):
    asked = []

    def load(path, texts, settings):
        asked.append((path, settings.pooling))
        raise UserError("enough")

    monkeypatch.setattr("coterie.llm.backbones.encoder.load_encoder", load)
    monkeypatch.chdir(tmp_path)
    one = experiment(tmp_path, "--expert.vectors=minilm")
    for _ in range(2):
        with pytest.raises(UserError, match="enough"):
            item_vectors(one.settings, one.data.catalogue)
        known_words(tmp_path / "minilm")
        (tmp_path / "minilm" / "1_Pooling").mkdir(exist_ok=True)
        own = '{"pooling_mode_cls_token": true}'
        (tmp_path / "minilm" / "1_Pooling" / "config.json").write_text(own)
    assert asked == [(None, "mean"), ("minilm", "cls")]
