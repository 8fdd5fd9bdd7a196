"""A split model computes what the whole one does, to the last gradient."""

from contextlib import suppress

import pytest
import torch
from tests.llm.tiny_split import Tiny, TinyLlama, TinyLongformer, batch, gradients, use_start
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.base import base_model
from coterie.llm.split.channel import Channel
from coterie.llm.split.cut import Cut, cut, padding_of, uncut
from coterie.llm.split.middle import Middle, Training

SGD = Training(lr=1.0, optimizer=RowSGD())
STEMS = {"longformer": "network.encoder.layer"}  # names of layers; all others are Llamas


def make(kind: str, n_layers: int) -> Tiny:
    if kind == "longformer":
        return TinyLongformer(n_layers)
    return TinyLlama(n_layers, attention=kind)


def split(backbone: Tiny, k: int, training: Training = SGD) -> tuple[Cut, Middle, Channel]:
    parts = cut(backbone, k)
    assert parts.stack is not None
    middle = Middle(parts.stack, training)
    channel = Channel(middle)
    parts.connect(channel)
    use_start(middle)
    return parts, middle, channel


def whole_step(backbone: Tiny, tokens: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = backbone.value(tokens, mask)
    loss.backward()
    return loss.detach(), gradients(backbone)


def split_step(
    backbone: Tiny, k: int, tokens: Tensor, mask: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Loss, gradients of the client's part, and of the middle (by one step of SGD with rate 1)."""
    parts, middle, channel = split(backbone, k)
    before = middle.adapter.row()
    with channel.session(0, training=True):
        loss = backbone.value(tokens, mask)
        loss.backward()
        channel.step()
    after = middle.trained(0).rows[0]
    assert parts.stack is not None
    return loss.detach(), gradients(backbone), middle.adapter.named_tensors(before - after)


@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize(
    ("kind", "n_layers", "k"),
    [("sdpa", 4, 1), ("sdpa", 5, 2), ("eager", 4, 1), ("longformer", 4, 1), ("longformer", 6, 2)],
)
def test_loss_and_every_gradient(kind: str, n_layers: int, k: int, side: str) -> None:
    tokens, mask = batch(side=side)
    if side == "none":
        mask = torch.ones_like(mask)
    loss, grads = whole_step(make(kind, n_layers), tokens, mask)
    split_loss, client, middle = split_step(make(kind, n_layers), k, tokens, mask)
    torch.testing.assert_close(split_loss, loss, rtol=0, atol=1e-6)
    stem = STEMS.get(kind, "network.model.layers")
    theirs = {
        f"{stem}.{k + int(n.split('.')[1])}.{n.split('.', 2)[2]}": g for n, g in middle.items()
    }
    # The client's last layer has moved from place N - 1 to k + 1.
    mine = {n.replace(f"{stem}.{k + 1}.", f"{stem}.{n_layers - 1}."): g for n, g in client.items()}
    assert mine.keys().isdisjoint(theirs)
    assert (mine | theirs).keys() == grads.keys()
    assert any(bool(g.any()) for g in theirs.values())
    for name, grad in (mine | theirs).items():
        # A gradient read from a step of SGD is rounded once more, at the size of the parameter.
        torch.testing.assert_close(grad, grads[name], rtol=0, atol=1e-6, msg=name)


def test_gradient_of_the_input() -> None:
    tokens, mask = batch()
    found = []
    for cut_at in (None, 1):
        backbone = TinyLlama(4)
        embedded = backbone.network.get_input_embeddings()(tokens).detach().requires_grad_()
        if cut_at is not None:
            _, _, channel = split(backbone, cut_at)
            channel.open(0, training=False)
        out = backbone.network(inputs_embeds=embedded, attention_mask=mask, use_cache=False)
        out.logits.square().mean().backward()
        found.append(embedded.grad)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["sdpa", "longformer"])
def test_bfloat16(kind: str) -> None:
    """The same operations in the same order: to the last bit, also where numbers are short."""
    tokens, mask = batch()
    loss, grads = whole_step(make(kind, 4).bfloat16(), tokens, mask)
    split_loss, client, middle = split_step(make(kind, 4).bfloat16(), 1, tokens, mask)
    assert split_loss == loss
    assert {grad.dtype for grad in grads.values()} == {torch.bfloat16}
    stem = STEMS.get(kind, "network.model.layers")
    for name, grad in client.items():
        assert torch.equal(grad, grads[name.replace(f"{stem}.2.", f"{stem}.3.")]), name
    for name, grad in middle.items():
        _, place, rest = name.split(".", 2)
        expected = grads[f"{stem}.{int(place) + 1}.{rest}"].float()
        assert bool(expected.any())
        # Read from a step of SGD on the float32 row, which rounds once more.
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-6, msg=name)


def test_wire_of_bfloat16_is_close_and_halves_the_bytes() -> None:
    tokens, mask = batch()
    totals, losses = [], []
    for wire in (None, "bfloat16"):
        backbone = TinyLlama(4)
        _, middle, _ = split(backbone, 1)
        channel = Channel(middle, wire)
        backbone.layers[1].connect(channel)
        with channel.session(0, training=True):
            loss = backbone.value(tokens, mask)
            loss.backward()
        losses.append(loss.detach())
        totals.append({(way, name): size for way, name, _, size in channel.traffic.drain()})
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=0)
    positions = tokens.numel()
    assert totals[0]["up", "activations"] == positions * 32 * 4
    assert totals[1]["up", "activations"] == positions * 32 * 2
    assert totals[0]["down", "gradients"] == 2 * totals[1]["down", "gradients"]
    assert totals[0]["up", "masks"] == positions
    assert not channel.traffic.drain()


def test_middle_learns_where_the_client_is_frozen() -> None:
    tokens, mask = batch()
    backbone = TinyLlama(4)
    _, middle, channel = split(backbone, 1)
    backbone.requires_grad_(False)
    with channel.session(3, training=True):
        backbone.value(tokens, mask).backward()
        channel.step()
    step = middle.adapter.named_tensors(middle.trained(3).rows[0] - middle.adapter.row())
    assert all(bool(part.any()) for part in step.values())
    fields = {(way, name) for way, name, *_ in channel.traffic.drain()}
    assert ("up", "gradients") in fields
    assert ("down", "gradients") not in fields  # nobody below needs it


def test_frozen_model_without_the_adapter() -> None:
    tokens, mask = batch()
    backbone = TinyLlama(4).eval()
    with torch.no_grad():
        adapted = backbone.value(tokens, mask)
        with base_model(backbone):
            frozen = backbone.value(tokens, mask)
        _, middle, channel = split(backbone, 1)
        with channel.session(0, training=False):
            assert backbone.value(tokens, mask) == adapted != frozen
            with base_model(backbone):
                assert backbone.value(tokens, mask) == frozen
            assert backbone.value(tokens, mask) == adapted
    assert all(parameter.requires_grad for parameter in middle.adapter.parameters)


def test_dropout_is_drawn_by_the_key() -> None:
    tokens, mask = batch()
    backbone = TinyLlama(4, dropout=0.5)
    _, _, channel = split(backbone, 1)
    for place in (0, 2):
        backbone.layers[place].eval()
    state = torch.random.get_rng_state()

    def loss(seed: int, calls: int = 1) -> Tensor:
        channel.open(0, training=True, key=Key.from_seed(seed))
        return [backbone.value(tokens, mask).detach() for _ in range(calls)][-1]

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    assert loss(1) != loss(1, calls=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    channel.open(0, training=True)
    with pytest.raises(UserError, match="key to draw from"):
        backbone.value(tokens, mask)
    backbone.eval()
    backbone.value(tokens, mask)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(
    "how",
    [
        {"do_sample": False},
        {"do_sample": False, "use_cache": False},
        {"num_beams": 4, "do_sample": False, "length_penalty": 0.5},
        {"num_beams": 3, "num_return_sequences": 3, "do_sample": False},
        {"num_return_sequences": 2, "do_sample": True},
    ],
    ids=["greedy", "no cache", "beams", "all beams", "sampled"],
)
def test_generation_gives_the_same_tokens(k: int, how: dict) -> None:
    tokens, mask = batch(3, 7)
    backbone = TinyLlama(5).eval()

    def generate() -> Tensor:
        with Key.from_seed(9).torch_rng():
            return backbone.network.generate(
                tokens, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, **how
            )

    whole = generate()
    parts, _, channel = split(backbone, k)
    with channel.session(0, training=False):
        assert torch.equal(generate(), whole)
        assert torch.equal(generate(), whole)
    if how.get("use_cache", True):
        sent = {name: size for way, name, _, size in channel.traffic.drain() if way == "up"}
        rows = 3 * max(how.get("num_beams", 1), how.get("num_return_sequences", 1))
        assert sent["activations"] == 2 * rows * (7 + 11) * 32 * 4  # every token once
    uncut(parts)
    assert torch.equal(generate(), whole)


def test_uncut_gives_the_whole_back() -> None:
    tokens, mask = batch()
    loss, grads = whole_step(TinyLlama(5), tokens, mask)
    backbone = TinyLlama(5)
    parts = cut(backbone, 2)
    assert len(backbone.layers) == 4
    uncut(parts)
    again, after = whole_step(backbone, tokens, mask)
    assert again == loss
    assert all(torch.equal(after[name], grad) for name, grad in grads.items())
    parts = cut(backbone, 2)
    parts.release()
    with pytest.raises(UserError, match="the middle is not here"):
        uncut(parts)


@pytest.mark.parametrize("k", [-1, 0, 3, 4, 9])
def test_k_out_of_range(k: int) -> None:
    backbone = TinyLlama(4)
    with pytest.raises(UserError, match=rf"k = {k} .* 4 layers: choose k in 1..2"):
        cut(backbone, k)
    assert len(backbone.layers) == 4


def test_two_layers_have_no_middle() -> None:
    with pytest.raises(UserError, match="at least 3"):
        cut(TinyLlama(2), 1)


def test_layers_of_another_kind() -> None:
    backbone = TinyLlama(4)
    backbone.use_layers([nn.Linear(32, 32) for _ in range(4)])
    with pytest.raises(UserError, match=r"TinyLlama has layers of type Linear"):
        cut(backbone, 1)


def test_sliding_window_is_refused() -> None:
    backbone = TinyLlama(4)
    backbone.network.config.layer_types = ["sliding_attention"] * 4
    with pytest.raises(UserError, match="sliding_attention: only full attention"):
        cut(backbone, 1)


def test_channel_is_needed() -> None:
    backbone = TinyLlama(4)
    parts = cut(backbone, 1)
    with pytest.raises(UserError, match="no channel"):
        backbone.value(*batch())
    parts.connect(Channel(Middle(parts.stack, SGD)))
    with pytest.raises(UserError, match="no session is open"):
        backbone.value(*batch())


def test_an_error_in_a_session_loses_what_was_trained() -> None:
    backbone = TinyLlama(4)
    _, middle, channel = split(backbone, 1)
    for fails in (False, True):
        with suppress(ZeroDivisionError), channel.session(0, training=True):
            backbone.value(*batch()).backward()
            channel.step()
            assert 1 / (not fails)
        if not fails:
            middle.trained(0)
    with pytest.raises(UserError, match="has not finished training"):
        middle.trained(0)


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("past", [0, 3])
def test_padding_is_read_from_the_causal_mask(past: int, additive: bool) -> None:
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()
    length = 6 - past
    full = torch.ones(6, 6).tril().bool()[past:] & real[:, None]
    mask = torch.zeros(full.shape).masked_fill(~full, torch.finfo(torch.float32).min)
    assert torch.equal(padding_of((mask if additive else full)[:, None], past, length), real)


def test_a_mask_that_cannot_be_rebuilt() -> None:
    full = torch.ones(6, 6).tril().bool()
    for wrong in (full & full.T.roll(2, 0), torch.ones(6, 6).bool()):
        with pytest.raises(UserError, match="not causal with padding"):
            padding_of(wrong[None, None].expand(2, 1, 6, 6), 0, 6)
    backbone = TinyLlama(4)
    _, _, channel = split(backbone, 1)
    channel.open(0, training=False)
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(UserError, match="packed"):
        backbone.network(torch.full((1, 6), 5), position_ids=packed, use_cache=False)
