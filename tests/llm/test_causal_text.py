"""Causal language models over titles: loss, grounding, LoRA, layers, loading."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import (
    GenerationSettings,
    LoraSettings,
    ModelSettings,
    PretrainSettings,
)
from coterie.llm.backbones.base import base_model
from coterie.llm.backbones.causal_text import (
    CausalText,
    grounding_scores,
    load_causal_text,
    tiny_text,
)
from coterie.llm.backbones.pretraining import pretrain
from coterie.llm.backbones.text import END, bigrec_template, compact_template
from coterie.llm.data.catalogue import ItemWords
from coterie.llm.data.examples import Examples

KEY = Key.from_seed(0)
WORDS = ["Heat", "Alien", "Fargo", "Rocky", "Jaws", "Speed", "Scream", "Babe", "Clue", "Big"]
TITLES = [f"{word} (19{90 + n})" for n, word in enumerate(WORDS)]
GENERATION = GenerationSettings(beams=3, candidates=3, max_new_tokens=8, length_penalty=0.0)
HISTORIES = Ragged.from_lists([[0, 1, 2, 3], [], [5], [9, 8, 7, 6, 5, 4]])
EXAMPLES = Examples(Ragged.from_lists([[0, 1, 2], [4], [5, 6]]), torch.tensor([3, 0, 7]))


def small(titles=TITLES, layers=2) -> CausalText:
    return tiny_text(
        titles,
        ModelSettings(layers=layers, width=16, heads=2, vocabulary=320, context=600),
        KEY,
        GENERATION,
    )


@pytest.fixture(scope="module")
def counting() -> CausalText:
    """A model that has learnt that item i + 1 comes after item i."""
    torch.set_num_threads(1)  # as in every test; this comes before
    backbone = small(layers=1)
    start = torch.arange(10).repeat(3)
    rows = [[(s + k) % 10 for k in range(4)] for s in start.tolist()]
    examples = Examples(Ragged.from_lists(rows), (start + 4) % 10)
    settings = PretrainSettings(steps=100, batch=10, lr=2e-2, warmup=10, check_every=50)
    pretrain(backbone, examples, examples, settings, KEY)
    return backbone


def test_learns_a_deterministic_next_item(counting):
    histories = Ragged.from_lists([[s, (s + 1) % 10, (s + 2) % 10] for s in range(10)])
    assert counting.scores(histories).argmax(1).tolist() == [(s + 3) % 10 for s in range(10)]


def test_untrained_model_does_not_know_it():
    histories = Ragged.from_lists([[s, (s + 1) % 10, (s + 2) % 10] for s in range(10)])
    right = small(layers=1).eval().scores(histories).argmax(1) == (torch.arange(10) + 3) % 10
    assert right.sum() < 5


def test_scores_have_the_shape_of_the_catalogue():
    backbone = small().eval()
    scores = backbone.scores(HISTORIES)
    assert scores.shape == (4, 10)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    assert backbone.scores(Ragged.from_lists([])).shape == (0, 10)
    assert not scores.requires_grad


def test_grounding_equals_a_loop_over_items():
    # One text a user, whatever its probability.
    generated, items = KEY.normal(5, 1, 7), KEY.fold("items").normal(30, 7)
    naive = -cdist(generated[:, 0].double().numpy(), items.double().numpy())
    torch.testing.assert_close(
        grounding_scores(generated, items, torch.zeros(1, 1)).double(),
        torch.from_numpy(naive),
        rtol=1e-5,
        atol=1e-5,
    )


def test_grounding_of_several_texts_equals_a_loop():
    generated, items = KEY.normal(2, 3, 4), KEY.fold("items").normal(6, 4)
    log_p, t = KEY.fold("p").normal(2, 3), 0.7
    got = grounding_scores(generated, items, log_p, t)
    for user in range(2):
        p = [math.exp(x) for x in log_p[user].tolist()]
        for item in range(6):
            total = sum(
                p[c] / sum(p) * math.exp(-math.dist(generated[user, c], items[item]) / t)
                for c in range(3)
            )
            assert got[user, item].item() == pytest.approx(t * math.log(total), abs=1e-4)


def test_grounding_finds_equal_text_at_distance_zero_in_any_batch():
    items = KEY.normal(300, 64) * 50
    for n in (1, 40):
        scores = grounding_scores(items[:n, None], items, torch.zeros(1, 1))
        assert scores.diagonal().abs().max() == 0


def test_generated_titles_are_embedded_as_items_are(counting):
    vectors = counting.item_vectors()
    mixed = [TITLES[3], "Something else", TITLES[3], ""]
    found = counting.embed(mixed)
    assert torch.equal(found[0], vectors[3])
    assert torch.equal(found[2], vectors[3])
    assert found.shape == (4, 16)
    # The last layer's state at the last token, of each title alone.
    for number, title in enumerate(TITLES):
        tokens = counting.text.tokenizer(title + END, return_tensors="pt")
        with torch.no_grad():
            output = counting.model(**tokens, output_hidden_states=True)
        torch.testing.assert_close(
            vectors[number], output.hidden_states[-1][0, -1], rtol=1e-4, atol=1e-5
        )


def test_items_of_one_title_score_alike():
    titles = [*TITLES[:4], TITLES[1], f"  {TITLES[1].replace(' ', '  ')}"]
    scores = small(titles).eval().scores(HISTORIES.take(torch.tensor([1])))
    assert scores.shape == (1, 6)
    assert torch.equal(scores[:, 1], scores[:, 4])
    assert torch.equal(scores[:, 1], scores[:, 5])
    assert scores[:, :4].unique().numel() == 4


def test_scores_do_not_depend_on_the_rest_of_the_batch(counting):
    together = counting.scores(HISTORIES)
    for number in range(len(HISTORIES)):
        alone = counting.scores(HISTORIES.take(torch.tensor([number])))
        torch.testing.assert_close(together[number], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("template", [compact_template(END), bigrec_template()])
def test_loss_equals_a_loop_over_rows(template):
    model = small()
    backbone = CausalText(model.model, model.text.tokenizer, TITLES, template, GENERATION, 600)
    backbone.model.double().eval()
    total, count = 0.0, 0
    for history, target in zip(EXAMPLES.history.tolists(), EXAMPLES.target.tolist(), strict=True):
        prompt = template.prompt([TITLES[item] for item in history])
        tokenizer = model.text.tokenizer
        before = tokenizer(prompt)["input_ids"]
        after = tokenizer(template.answer(TITLES[target]) + END, add_special_tokens=False)
        tokens = torch.tensor([before + after["input_ids"]])
        predicted = tokens.shape[1] - 1
        with torch.no_grad():
            total += float(backbone.model(input_ids=tokens, labels=tokens).loss) * predicted
        count += predicted
    assert float(backbone.loss(EXAMPLES).detach()) == pytest.approx(total / count, rel=1e-5)


def test_lora_starts_without_effect_and_embeddings_stay_the_base_models():
    backbone = small().eval()
    before, vectors = backbone.scores(HISTORIES), backbone.item_vectors()
    plain_names = {name for name, _ in backbone.named_parameters()}
    backbone.add_lora(LoraSettings(rank=2, alpha=4.0), KEY)
    adapter = Adapter(backbone.named_parameters())
    assert adapter.size == 2 * 2 * 2 * (2 * 16)  # layers, targets, factors, rank x width
    assert all("lora_" in name for name in adapter.names)
    assert not plain_names & set(adapter.names)
    torch.testing.assert_close(backbone.eval().scores(HISTORIES), before)
    adapter.load(KEY.fold("row").normal(adapter.size))
    backbone.prepare()
    assert torch.equal(backbone.item_vectors(), vectors)
    backbone._item_vectors = None
    torch.testing.assert_close(backbone.item_vectors(), vectors, rtol=1e-5, atol=1e-5)
    assert Adapter(backbone.named_parameters()).names == adapter.names
    assert not torch.allclose(backbone.loss(EXAMPLES), small().eval().loss(EXAMPLES))


def test_base_model_leaves_the_flags_of_training_as_they_were():
    backbone = small()
    backbone.add_lora(LoraSettings(rank=2), KEY)
    chosen = [p for p in backbone.parameters() if p.requires_grad]
    chosen[0].requires_grad_(False)
    flags = [p.requires_grad for p in backbone.parameters()]
    with base_model(backbone.model):
        pass
    assert [p.requires_grad for p in backbone.parameters()] == flags


def test_base_model_reaches_layers_that_are_elsewhere():
    backbone = small()
    backbone.layers[0].adapters_enabled = True
    with base_model(backbone.model):
        assert not backbone.layers[0].adapters_enabled
    assert backbone.layers[0].adapters_enabled


def test_unknown_lora_target_is_refused_by_name():
    with pytest.raises(UserError, match="no module named 'query'"):
        small().add_lora(LoraSettings(targets=("q_proj", "query")), KEY)


def test_layers_can_be_put_back_without_any_change():
    backbone = small(layers=3).eval()
    before, loss = backbone.scores(HISTORIES), backbone.loss(EXAMPLES)
    layers = list(backbone.layers)
    backbone.use_layers(layers)
    assert torch.equal(backbone.scores(HISTORIES), before)
    assert torch.equal(backbone.loss(EXAMPLES), loss)
    backbone.use_layers(layers[:2])
    assert backbone.model.config.num_hidden_layers == 2
    assert len(backbone.layers) == 2
    assert not torch.equal(backbone.loss(EXAMPLES), loss)


def test_cut_histories_are_counted():
    settings = ModelSettings(layers=1, width=16, heads=2, vocabulary=320, context=18)
    backbone = tiny_text(TITLES, settings, KEY, GENERATION).eval()
    backbone.scores(HISTORIES)
    assert backbone.text.cut == 2


@pytest.mark.parametrize("name", ["coterie-test/none", "none-such"])
def test_model_that_cannot_be_had_is_one_line(name, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # tests never ask the network
    with pytest.raises(UserError, match=f"cannot load '{name}'.*hf download") as caught:
        load_causal_text(name, TITLES, bigrec_template(), GENERATION)
    assert "\n" not in str(caught.value)


def test_missing_folder_is_refused():
    with pytest.raises(UserError, match="there is no folder"):
        load_causal_text("./none-such", TITLES, bigrec_template(), GENERATION)


def test_saved_model_loads_from_its_folder(tmp_path, counting):
    counting.model.save_pretrained(tmp_path)
    counting.text.tokenizer.save_pretrained(tmp_path)
    template = compact_template(END)
    again = load_causal_text(str(tmp_path), TITLES, template, GENERATION, context=600)
    torch.testing.assert_close(again.eval().scores(HISTORIES), counting.scores(HISTORIES))


def test_model_without_layers_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(UserError, match=r"GPT2LMHeadModel has no 'model.layers'"):
        CausalText(model, None, TITLES, bigrec_template(), GENERATION)


def test_more_candidates_than_beams_are_refused():
    with pytest.raises(UserError, match=r"raise 'generation\.beams'"):
        GenerationSettings(beams=2, candidates=3)


def test_words_ground_what_is_written(monkeypatch):
    model = small()
    written = ["Heat (1990)", "no such thing", "Rocky or Big", "Alien"]  # two for each of two
    log_p = torch.tensor([[-0.5, -2.0], [-1.0, -1.5]])
    monkeypatch.setattr(model, "generate", lambda history: (written, log_p))
    model.generation = replace(GENERATION, grounding="words", temperature=0.3, batch=2)
    cosine = ItemWords(TITLES).of_texts(written).numpy().reshape(2, 2, -1)
    p = np.exp(log_p.double().numpy())
    p /= p.sum(1, keepdims=True)
    near = np.exp(-np.sqrt(np.maximum(2 - 2 * cosine, 0)) / 0.3)
    expected = 0.3 * np.log((p[:, :, None] * near).sum(1))
    found = model.scores(Ragged.from_lists([[0], [1]]))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert [int(row.argmax()) for row in found] == [0, 1]
