"""The backbones that users train give the same loss, gradients and scores when they are split."""

from collections.abc import Callable

import pytest
import torch
from tests.llm.tiny_encoder import network, rows
from tests.llm.tiny_split import use_start
from torch import nn

from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import GenerationSettings, LoraSettings, ModelSettings
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.causal_text import tiny_text
from coterie.llm.backbones.encoder import Encoder
from coterie.llm.backbones.recformer import small_recformer
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.data.examples import Examples
from coterie.llm.split.channel import Channel
from coterie.llm.split.cut import cut, uncut
from coterie.llm.split.middle import Middle, Training

KEY = Key.from_seed(3)
WORDS = ["Heat", "Alien", "Fargo", "Rocky", "Jaws", "Speed", "Scream", "Babe", "Clue", "Big"]
HISTORIES = Ragged.from_lists([[0, 1, 2, 3], [5], [9, 8, 7, 6, 5, 4]])
EXAMPLES = Examples(Ragged.from_lists([[0, 1, 2], [4], [5, 6]]), torch.tensor([3, 0, 7]))


def item() -> Backbone:
    return TinyItem(10, width=16, layers=4, heads=2, context=8, key=KEY)


def text() -> Backbone:
    generation = GenerationSettings(beams=3, candidates=3, max_new_tokens=8, length_penalty=0.0)
    return tiny_text(
        WORDS,
        ModelSettings(layers=4, width=16, heads=2, vocabulary=320, context=600),
        KEY,
        generation,
    )


def recformer() -> Backbone:
    titles = [(("title", word), ("category", f"kind {n % 3}")) for n, word in enumerate(WORDS)]
    size = ModelSettings(layers=4, width=16, heads=2)
    return small_recformer(titles, size, KEY, window=8)


def encoder() -> Backbone:
    return Encoder(network(), rows(), ModelSettings(name="encoder", space="raw"))


def adapted(make: Callable[[], Backbone], lora: bool) -> Backbone:
    backbone = make()
    if lora:
        backbone.add_lora(LoraSettings(dropout=0.0), KEY)
        for name, parameter in backbone.named_parameters():
            if "lora_B" in name:
                with KEY.fold(name).torch_rng():
                    nn.init.normal_(parameter, std=0.1)
    return backbone


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "all parameters"])
@pytest.mark.parametrize("make", [item, text, recformer, encoder])
def test_equal(make: Callable[[], Backbone], lora: bool) -> None:
    backbone = adapted(make, lora)
    whole = Adapter(backbone.named_parameters())
    loss = backbone.loss(EXAMPLES)
    loss.backward()
    expected = whole.gradient()
    whole.clear()
    backbone.eval()
    backbone.prepare()
    scores = backbone.scores(HISTORIES)

    parts = cut(backbone, 2)
    middle = Middle(parts.stack, Training(1.0, RowSGD()))
    channel = Channel(middle)
    parts.connect(channel)
    use_start(middle)
    backbone.train()
    with channel.session(0, training=True):
        backbone.prepare()
        split_loss = backbone.loss(EXAMPLES)
        split_loss.backward()
        channel.step()
    assert float(split_loss.detach()) == pytest.approx(float(loss.detach()), abs=1e-6)
    client = Adapter(backbone.named_parameters())
    assert client.size + middle.size == whole.size
    found = (
        client.gradient().square().sum()
        + (middle.trained(0).rows - middle.adapter.row()).square().sum()
    )
    torch.testing.assert_close(found, expected.square().sum(), rtol=1e-4, atol=1e-6)

    use_start(middle)
    backbone.eval()
    with channel.session(0, training=False):
        backbone.prepare()
        torch.testing.assert_close(backbone.scores(HISTORIES), scores)
    uncut(parts)
    backbone.prepare()
    assert torch.equal(backbone.scores(HISTORIES), scores)
    whole.clear()
    backbone.train().loss(EXAMPLES).backward()
    torch.testing.assert_close(whole.gradient(), expected, rtol=0, atol=1e-6)
