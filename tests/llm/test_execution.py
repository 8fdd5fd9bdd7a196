"""Modes of the middle's layers, whatever they were before they were cut out."""

import pytest
import torch
from tests.llm.tiny_split import TinyLlama, batch, use_start
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.llm.split.channel import Channel
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training


@pytest.mark.parametrize("left", ["eval", "train"])
def test_the_first_training_session_draws_dropout(left: str) -> None:
    """Pre-training and `from_pretrained` leave layers in eval mode; a new module says train."""
    tokens, mask = batch()
    backbone = getattr(TinyLlama(4, dropout=0.5), left)()
    parts = cut(backbone, 1)
    middle = Middle(parts.stack, Training(lr=0.1))
    channel = Channel(middle)
    parts.connect(channel)
    use_start(middle)
    backbone.train()
    for place in (0, 2):
        backbone.layers[place].eval()  # so that what differs is the middle's

    def loss(seed: int) -> Tensor:
        channel.open(0, training=True, key=Key.from_seed(seed))
        return backbone.value(tokens, mask).detach()

    first, second = loss(1), loss(2)
    assert first != second
    assert first == loss(1)
    backbone.eval()
    assert loss(1) == loss(2)
    backbone.train()
    for place in (0, 2):
        backbone.layers[place].eval()
    assert loss(1) == first


def test_layers_left_in_training_do_not_draw_in_the_first_evaluation() -> None:
    tokens, mask = batch()
    whole = TinyLlama(4, dropout=0.5).eval()
    with torch.no_grad():
        expected = whole.value(tokens, mask)
    backbone = TinyLlama(4, dropout=0.5).train()
    parts = cut(backbone, 1)
    backbone.eval()
    middle = Middle(parts.stack, Training(lr=0.1))
    use_start(middle)
    channel = Channel(middle)
    parts.connect(channel)
    channel.open(0, training=False)
    assert backbone.value(tokens, mask).detach() == expected
