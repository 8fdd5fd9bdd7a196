"""RecFormer: tokens, embeddings, masks, the two stages, public checkpoint names."""

import pytest
import torch
from transformers import LongformerConfig, LongformerModel

from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import LoraSettings, ModelSettings, PretrainSettings
from coterie.llm.backbones.pretraining import pretrain
from coterie.llm.backbones.recformer import (
    RecFormer,
    load_public,
    load_recformer,
    small_recformer,
)
from coterie.llm.backbones.text import ItemTokens, Limits, item_attributes
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.examples import Examples

KEY = Key.from_seed(0)
WORDS = ["Heat", "Alien", "Fargo", "Rocky", "Jaws", "Speed", "Scream", "Babe", "Clue", "Big"]
ITEMS = [(("title", word), ("category", f"Drama {n % 3}")) for n, word in enumerate(WORDS)]
HISTORIES = Ragged.from_lists([[0, 1, 2, 3], [], [5], [9, 8, 7, 6, 5, 4]])
EXAMPLES = Examples(Ragged.from_lists([[0, 1, 2], [4], [5, 6]]), torch.tensor([3, 0, 7]))


def small(catalogue=ITEMS, **changed) -> RecFormer:
    size = {"width": 16, "heads": 2, "vocabulary": 320, "context": 96}
    size |= {name: changed.pop(name) for name in ("width", "layers", "context") if name in changed}
    return small_recformer(catalogue, ModelSettings(**size), KEY, **{"window": 4} | changed)


class Letters:
    """A tokenizer of one token a letter, so that the expected rows can be written down."""

    bos_token_id, pad_token_id = 0, 1

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}


def test_history_is_flattened_newest_first():
    items = [(("k", "ab"), ("g", "c")), (("k", "d"),)]
    tokens = ItemTokens(items, Letters(), Limits())
    row = tokens.encode(Ragged.from_lists([[0, 1], [1]]), multiple=4)
    assert [chr(t) if t > 1 else t for t in row.token[0].tolist()] == [0, *"kdkabgc"]
    assert row.item[0].tolist() == [0, 1, 1, 2, 2, 2, 2, 2]
    assert row.kind[0].tolist() == [0, 1, 2, 1, 2, 2, 1, 2]
    assert row.mask[0].tolist() == [1] * 8
    assert row.token[1].tolist()[3:] == [1] * 5
    assert row.kind[1].tolist() == [0, 1, 2, 3, 3, 3, 3, 3]
    assert row.mask[1].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert tokens.cut == 0


def test_limits_cut_the_oldest_and_are_counted():
    items = [(("k", "abcdef"), ("g", "c"), ("h", "x"))]
    limits = Limits(attributes=2, attribute_tokens=3, items=2, tokens=7)
    tokens = ItemTokens(items, Letters(), limits)
    row = tokens.encode(Ragged.from_lists([[0], [0, 0], [0, 0, 0]]))
    assert [chr(t) for t in row.token[0, 1:6].tolist()] == list("kabgc")
    assert row.mask.sum(1).tolist() == [6, 7, 7]
    assert tokens.cut == 2


def test_embeddings_are_the_normalised_sum_of_four():
    backbone = small().eval()
    part = backbone.model.embeddings
    batch = backbone.items.encode(HISTORIES, 4)
    got = part(batch)
    pad = backbone.items.pad
    for row in range(len(HISTORIES)):
        place = pad
        for column in range(batch.token.shape[1]):
            if not batch.mask[row, column]:
                continue
            place += 1
            total = (
                part.word_embeddings.weight[batch.token[row, column]].double()
                + part.position_embeddings.weight[place].double()
                + part.token_type_embeddings.weight[batch.kind[row, column]].double()
                + part.item_position_embeddings.weight[batch.item[row, column]].double()
            )
            variance = total.var(unbiased=False)
            naive = (total - total.mean()) / (variance + part.LayerNorm.eps).sqrt()
            torch.testing.assert_close(got[row, column].double(), naive, rtol=1e-4, atol=1e-5)


def test_encoder_runs_as_the_longformer_of_transformers():
    backbone = small().eval()
    config = LongformerConfig(**backbone.model.config.to_dict())
    reference = LongformerModel(config, add_pooling_layer=False).eval()
    reference.encoder.load_state_dict(backbone.model.encoder.state_dict())
    reference.embeddings.LayerNorm.load_state_dict(backbone.model.embeddings.LayerNorm.state_dict())
    own = backbone.model.embeddings
    with torch.no_grad():
        reference.embeddings.position_embeddings.weight.copy_(own.position_embeddings.weight)
        reference.embeddings.token_type_embeddings.weight.zero_()
        batch = backbone.items.encode(HISTORIES, 4)
        words = (
            own.word_embeddings(batch.token)
            + own.token_type_embeddings(batch.kind)
            + own.item_position_embeddings(batch.item)
        )
        globally = torch.zeros_like(batch.mask)
        globally[:, 0] = 1
        expected = reference(
            inputs_embeds=words, attention_mask=batch.mask, global_attention_mask=globally
        ).last_hidden_state[:, 0]
        torch.testing.assert_close(backbone.model(batch), expected, rtol=1e-4, atol=1e-5)


def test_scores_are_cosines_over_the_temperature():
    backbone = small().eval()
    scores = backbone.scores(HISTORIES)
    assert scores.shape == (4, 10)
    assert scores.dtype == torch.float32
    assert backbone.scores(Ragged.from_lists([])).shape == (0, 10)
    with torch.no_grad():
        for item in (0, 7):
            history = backbone.model(backbone.items.encode(HISTORIES.take(torch.tensor([3])), 4))
            alone = backbone.model(backbone.items.encode(Ragged.from_lists([[item]]), 4))
            cosine = torch.cosine_similarity(history.double(), alone.double()).item()
            assert scores[3, item].item() == pytest.approx(cosine / 0.05, rel=1e-4)


def test_scores_do_not_depend_on_the_rest_of_the_batch():
    backbone = small().eval()
    together = backbone.scores(HISTORIES)
    for number in range(len(HISTORIES)):
        alone = backbone.scores(HISTORIES.take(torch.tensor([number])))
        torch.testing.assert_close(together[number], alone[0], rtol=1e-4, atol=1e-4)


def test_items_of_one_text_score_alike():
    backbone = small([*ITEMS, ITEMS[3], ITEMS[0]]).eval()
    scores = backbone.scores(HISTORIES)
    assert scores.shape == (4, 12)
    assert torch.equal(scores[:, 3], scores[:, 10])
    assert torch.equal(scores[:, 0], scores[:, 11])
    assert scores[0, :10].unique().numel() == 10


def test_loss_is_a_softmax_over_all_items():
    backbone = small().eval()
    expected = -backbone.scores(EXAMPLES.history).log_softmax(1)[range(3), EXAMPLES.target].mean()
    torch.testing.assert_close(backbone.loss(EXAMPLES).detach(), expected, rtol=1e-5, atol=1e-5)
    # With fewer items than are drawn, pre-training sees the whole catalogue too.
    torch.testing.assert_close(
        backbone.pretraining_loss(EXAMPLES).detach(), expected, rtol=1e-5, atol=1e-5
    )


def test_learns_a_deterministic_next_item():
    torch.set_num_threads(1)
    backbone = small(width=32, layers=1)
    start = torch.arange(10)
    rows = [[(s + k) % 10 for k in range(3)] for s in start.tolist()]
    examples = Examples(Ragged.from_lists(rows), (start + 3) % 10)
    settings = PretrainSettings(steps=200, batch=10, lr=2e-3, warmup=10, check_every=50)
    pretrain(backbone, examples, examples, settings, KEY)
    assert backbone.scores(examples.history).argmax(1).tolist() == examples.target.tolist()


def test_frozen_items_stay_and_others_are_embedded_anew():
    backbone = small().eval()
    backbone.add_lora(LoraSettings(rank=2), KEY)
    adapter = Adapter(backbone.named_parameters())
    assert {name.rsplit(".", 3)[1] for name in adapter.names} == {"lora_A", "lora_B"}
    assert adapter.size == 2 * 4 * 2 * (2 * 16)  # layers, targets, factors, rank x width
    before, scores = backbone.catalogue(), backbone.scores(HISTORIES)
    adapter.load(KEY.fold("row").normal(adapter.size))
    backbone.frozen_items = before
    backbone.prepare()
    assert backbone.catalogue() is before
    assert not torch.allclose(backbone.scores(HISTORIES), scores)  # the history side moves
    backbone.frozen_items = None
    backbone.prepare()
    assert not torch.allclose(backbone.catalogue(), before)


def test_loss_trains_the_history_side_only():
    backbone = small().eval()
    backbone.add_lora(LoraSettings(rank=2), KEY)
    backbone.loss(EXAMPLES).backward()
    assert not backbone.catalogue().requires_grad
    moved = [p for n, p in backbone.named_parameters() if p.requires_grad and "lora_B" in n]
    assert len(moved) == 8
    assert all(p.grad is not None for p in moved)


def test_without_lora_everything_is_trained():
    backbone = small()
    adapter = Adapter(backbone.named_parameters())
    assert adapter.size == sum(p.numel() for p in backbone.model.parameters())


def test_layers_can_be_put_back_without_any_change():
    backbone = small(layers=3).eval()
    before = backbone.scores(HISTORIES)
    layers = list(backbone.layers)
    backbone.use_layers(layers)
    assert torch.equal(backbone.scores(HISTORIES), before)
    backbone.use_layers(layers[:2])
    assert backbone.model.config.num_hidden_layers == 2
    assert not torch.equal(backbone.scores(HISTORIES), before)


# Written down from the public code, so that a renamed attribute cannot go unseen.
_PUBLIC = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "embeddings.item_position_embeddings.weight",
    "embeddings.LayerNorm.weight",
    "embeddings.LayerNorm.bias",
    *(
        f"encoder.layer.0.{module}.{kind}"
        for module in (
            *(f"attention.self.{name}" for name in ("query", "key", "value")),
            *(f"attention.self.{name}_global" for name in ("query", "key", "value")),
            "attention.output.dense",
            "attention.output.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        )
        for kind in ("weight", "bias")
    ),
)


@pytest.mark.parametrize("prefix", ["longformer.", "", "_forward_module.model.longformer."])
def test_public_names_load(prefix):
    giver, taker = small(layers=1), small(layers=1)
    own = giver.model.state_dict()
    assert set(own) == set(_PUBLIC)
    state = {prefix + name: own[name] + 1 for name in _PUBLIC}
    extras = {prefix + "embeddings.position_ids": torch.arange(3), "lm_head.bias": torch.ones(2)}
    load_public(taker.model, state | extras | {"item_embedding.weight": torch.ones(2, 2)}, "file")
    for name, value in taker.model.state_dict().items():
        assert torch.equal(value, own[name] + 1), name


def test_checkpoints_that_do_not_fit_are_refused_and_change_nothing():
    backbone = small(layers=1)
    before = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    state = {"longformer." + name: value + 1 for name, value in before.items()}
    wrong = state | {"longformer." + _PUBLIC[-1]: torch.ones(3)}
    with pytest.raises(UserError, match=r"is \(3,\), the model's is \(16,\)"):
        load_public(backbone.model, wrong, "file")
    del state["longformer." + _PUBLIC[-1]]
    with pytest.raises(UserError, match=r"file has no 'longformer\.encoder\.layer\.0\.output"):
        load_public(backbone.model, state, "file")
    assert all(torch.equal(value, before[n]) for n, value in backbone.model.state_dict().items())


def test_published_model_loads_from_files(tmp_path):
    # As published: 51 item positions and windows of 64, on a Longformer's own folder.
    source = small(layers=1, items=50, window=64, context=1024)
    base = tmp_path / "base"
    source.model.config.save_pretrained(base)
    tokenizer = small_tokenizer(source)
    tokenizer.save_pretrained(base)
    state = {f"longformer.{name}": value for name, value in source.model.state_dict().items()}
    torch.save(state, tmp_path / "recformer.bin")
    loaded = load_recformer(tmp_path / "recformer.bin", ITEMS, str(base))
    assert loaded.model.window == 64
    torch.testing.assert_close(loaded.eval().scores(HISTORIES), source.eval().scores(HISTORIES))


def small_tokenizer(backbone: RecFormer):
    from coterie.llm.backbones.text import texts, train_tokenizer

    tokenizer = train_tokenizer(texts(ITEMS), 320)
    assert len(tokenizer) == backbone.model.config.vocab_size
    return tokenizer


@pytest.mark.parametrize("content", [None, b"not a checkpoint"])
def test_unreadable_checkpoint_is_one_line(tmp_path, content):
    path = tmp_path / "recformer.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"recformer\.bin") as caught:
        load_recformer(path, ITEMS, str(tmp_path))
    assert "\n" not in str(caught.value)


def test_attributes_of_the_sample():
    data = generate()
    found = item_attributes(Catalogue.of(data))
    assert len(found) == data.n_items
    assert found[0][0] == ("title", data.titles[0])
    assert found[0][1] == ("category", " ".join(data.genres[0]))


def test_data_without_titles_are_refused():
    from dataclasses import replace

    with pytest.raises(UserError, match="use backbone tiny-item"):
        item_attributes(Catalogue.of(replace(generate(), titles=None)))
