"""Folders of models that are not whole: one line each, before anything is trained."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    T5Config,
)

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import GenerationSettings, LoraSettings, ModelSettings
from coterie.llm.backbones.base import add_lora
from coterie.llm.backbones.causal_text import load_causal_text
from coterie.llm.backbones.hub import check_finite, check_loaded
from coterie.llm.backbones.recformer import load_recformer, small_recformer
from coterie.llm.backbones.text import END, compact_template, texts, train_tokenizer

TITLES = ["Red King", "Blue River", "Old Night"]
ITEMS = [(("title", title),) for title in TITLES]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
TOKENIZER = train_tokenizer(TITLES, 300)
SHAPE = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def save(folder, kind=LlamaForCausalLM, tokenizer=TOKENIZER, shards="1GB", **config) -> Path:
    with Key.from_seed(0).torch_rng():
        model = kind(LlamaConfig(**{**SHAPE, **config}))
    model.save_pretrained(folder, max_shard_size=shards)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    """A copy of a whole one, to be spoilt."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def load(folder):
    generation = GenerationSettings(beams=2, max_new_tokens=3)
    return load_causal_text(str(folder), TITLES, compact_template(END), generation, 48)


def refused(folder, match):
    with pytest.raises(UserError, match=match) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def change(folder, name="config.json", **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut_off(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def rewrite(folder, made):
    """Replace the weights by what is made of them."""
    weights = load_file(folder / "model.safetensors")
    save_file(made(weights), folder / "model.safetensors", metadata={"format": "pt"})


def spoil_value(weights, value=float("nan")):
    weights["model.layers.1.mlp.up_proj.weight"][3, 3] = value
    return weights


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize(("content", "said"), [(POINTER, "git lfs pull"), ("", "is empty")])
def test_pointers_and_empty_files_are_named(folder, name, content, said):
    (folder / name).write_text(content)
    refused(folder, f"{name} is .*{said}" if content else f"{name} {said}")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_files_that_were_cut_off_are_named(folder, name):
    cut_off(folder / name)
    refused(folder, rf"{name} is damaged or was cut off .*hf download")


@pytest.mark.parametrize("content", [b"no pickle", b"\x80\x02}q\x00.", b"[1, 2]"])
def test_pickles_are_looked_at_as_well(folder, content):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert load(folder).scores(Ragged.from_lists([[0]])).shape == (1, 3)
    (folder / "pytorch_model.bin").write_bytes(content)
    refused(folder, "pytorch_model.bin is damaged|has no weights for")
    torch.save(weights, folder / "pytorch_model.bin")
    cut_off(folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin is damaged or was cut off")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "[]", "config.json is no JSON object"),
        ("config.json", "{}", "cannot load .* by AutoConfig .*Unrecognized model"),
        ("generation_config.json", "{", "generation_config.json is damaged"),
        ("tokenizer_config.json", "null", "tokenizer_config.json is no JSON object"),
        ("tokenizer.json", "{}", "cannot load .* by AutoTokenizer"),
    ],
)
def test_wrong_json_is_one_line(folder, name, content, said):
    (folder / name).write_text(content)
    refused(folder, said)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_hidden_layers": 3}, r"no weights for 'model\.layers\.2.* and 8 more"),
        ({"num_hidden_layers": 1}, r"no place for, 'model\.layers\.1"),
        ({"intermediate_size": 32}, r"other sizes than its config.json says.*mlp.*and 5 more"),
        ({"vocab_size": 99}, "other sizes"),
        ({"attention_bias": True}, r"no weights for 'model\.layers\.0\.self_attn\.k_proj\.bias'"),
        ({"dtype": "float99"}, "cannot load .*float99"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantised \(gptq\)"),
        ({"quantization_config": {"load_in_4bit": True}}, "quantised"),
        ({"model_type": "t5"}, "is a t5, which writes no text"),
        ({"model_type": "of-mine", "auto_map": {"AutoConfig": "a.B"}}, "custom code"),
    ],
)
def test_a_configuration_of_another_model_is_refused(folder, values, said):
    change(folder, **values)
    refused(folder, said)


def test_bias_that_the_configuration_does_not_know_is_refused(tmp_path):
    folder = save(tmp_path / "biased", attention_bias=True)
    assert load(folder).n_items == 3
    change(folder, attention_bias=False)
    refused(folder, r"no place for, 'model\.layers\.0\.self_attn\.k_proj\.bias' and 7 more")


@pytest.mark.parametrize("kind", [LlamaModel, LlamaForSequenceClassification])
def test_a_missing_head_is_refused(tmp_path, kind):
    refused(save(tmp_path / "headless", kind), r"no weights for 'lm_head\.weight'")


def test_tied_weights_may_be_missing_and_other_heads_may_be_there(tmp_path):
    tied = save(tmp_path / "tied", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    rewrite(tied, lambda weights: weights | {"v_head.summary.weight": torch.ones(1, 16)})
    model = load(tied).model
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_two_loads_are_the_same_bits_and_draw_nothing(folder):
    before = torch.get_rng_state()
    first, second = load(folder).model.state_dict(), load(folder).model.state_dict()
    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in first.items())
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert torch.equal(torch.get_rng_state(), before)


def test_shards_must_be_there_and_whole(tmp_path):
    folder = save(tmp_path / "sharded", shards="8KB")
    assert load(folder).n_items == 3
    shards = sorted(folder.glob("*.safetensors"))
    (folder / "spare").write_bytes(shards[1].read_bytes())
    shards[1].unlink()
    refused(folder, rf"lacks 1 of the {len(shards)} files of its weights, {shards[1].name}")
    shards[1].write_text(POINTER)
    refused(folder, f"{shards[1].name} is a pointer of git-lfs")
    shards[1].write_bytes((folder / "spare").read_bytes()[:-4])
    refused(folder, f"{shards[1].name} is damaged")
    (folder / "model.safetensors.index.json").write_text("{")
    refused(folder, r"index\.json is damaged")
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, r"index\.json names no file")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(folder, value):
    rewrite(folder, lambda weights: spoil_value(weights, value))
    refused(folder, r"'model\.layers\.1\.mlp\.up_proj\.weight' .* NaN or infinite")


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_of_coded_numbers_are_refused(folder, kind):
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(folder, lambda weights: weights | {name: weights[name].to(kind)})
    refused(folder, rf"'{name}' .* is quantised")


def test_a_model_in_half_precision_is_whole(folder):
    rewrite(folder, lambda weights: {n: value.bfloat16() for n, value in weights.items()})
    assert load(folder).n_items == 3


def test_more_tokens_than_embeddings_are_refused(tmp_path):
    refused(save(tmp_path / "few", vocab_size=100), r"up to number 2\d\d, the model embeds 100")


@pytest.mark.parametrize(("rows", "fits"), [(0, False), (1, True)])
def test_one_added_token_needs_one_more_row(tmp_path, rows, fits):
    tokenizer = train_tokenizer(TITLES, 300)
    tokenizer.add_tokens(["<new>"])
    folder = save(tmp_path / "added", tokenizer=tokenizer, vocab_size=SHAPE["vocab_size"] + rows)
    if fits:
        assert load(folder).scores(Ragged.from_lists([[0, 1]])).isfinite().all()
    else:
        refused(folder, f"up to number {SHAPE['vocab_size']}, the model embeds")


def test_a_missing_tokenizer_is_said(tmp_path):
    refused(save(tmp_path / "mute", tokenizer=None), "has no tokenizer, such as tokenizer.json")


def test_a_tokenizer_without_an_end_is_refused(folder):
    change(folder, "tokenizer_config.json", eos_token=None)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    refused(folder, "has no 'eos_token'")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (("config.json", "tokenizer.json"), "has no weights: it needs model.safetensors"),
        (("model.safetensors", "tokenizer.json"), "has no config.json"),
        ((), "has no config.json"),
    ],
)
def test_what_is_not_there_is_said(folder, left, said):
    for file in folder.iterdir():
        if file.name not in left:
            file.unlink()
    refused(folder, said)


def test_a_file_and_weights_of_another_format_are_refused(folder):
    refused(folder / "config.json", "is a file: give the folder")
    (folder / "model.safetensors").rename(folder / "model.gguf")
    refused(folder, "only model.gguf")


def test_an_encoder_is_refused(tmp_path):
    config = {"vocab_size": len(TOKENIZER), "hidden_size": 16, "intermediate_size": 16}
    encoder = BertModel(BertConfig(**config, num_hidden_layers=1, num_attention_heads=2))
    encoder.save_pretrained(tmp_path / "bert")
    T5Config(vocab_size=300, d_model=16, d_kv=8, d_ff=16).save_pretrained(tmp_path / "t5")
    (tmp_path / "t5" / "model.safetensors").write_bytes(
        (tmp_path / "bert" / "model.safetensors").read_bytes()
    )
    for name, said in (("bert", "no 'model.layers'"), ("t5", "is a t5, which writes no text")):
        TOKENIZER.save_pretrained(tmp_path / name)
        refused(tmp_path / name, said)


def test_an_adapter_is_refused_and_merged_it_is_what_was_trained(whole, folder, tmp_path):
    wrapped = get_peft_model(
        LlamaForCausalLM.from_pretrained(whole), LoraConfig(r=2, target_modules=["q_proj"])
    )
    for name, value in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)
    wrapped.save_pretrained(tmp_path / "adapter")
    TOKENIZER.save_pretrained(tmp_path / "adapter")
    refused(tmp_path / "adapter", "holds an adapter of peft.* merge it first")
    # Beside the base's own weights as well: transformers would put it on top.
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "adapter" / name, folder / name)
    refused(folder, "holds an adapter of peft")
    tokens = torch.arange(8)[None]
    expected = wrapped(tokens).logits
    with pytest.raises(UserError, match="has an adapter of peft on top already"):
        add_lora(wrapped, LoraSettings(rank=2), ("q_proj",), Key.from_seed(0), "model.layers")
    wrapped.merge_and_unload().save_pretrained(tmp_path / "merged")
    TOKENIZER.save_pretrained(tmp_path / "merged")
    found = load(tmp_path / "merged").model(tokens).logits
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, LlamaForCausalLM.from_pretrained(whole)(tokens).logits)


def test_weights_saved_with_the_names_of_an_adapter_are_refused(folder):
    def wrapped(weights):
        of_layer = "q_proj.base_layer.weight"
        return {n.replace("q_proj.weight", of_layer): value for n, value in weights.items()}

    rewrite(folder, wrapped)
    refused(folder, r"no weights for 'model\.layers\.0\.self_attn\.q_proj\.weight' and 1 more")


@pytest.mark.parametrize("command", [["train", "pplr"], ["llm", "serve", "--layers", "1:2"]])
def test_the_command_line_ends_with_status_2_and_writes_nothing(folder, tmp_path, capsys, command):
    cut_off(folder / "model.safetensors")
    flags = ["--data", "sample", "--preset", "smoke", "--out", str(tmp_path / "runs")]
    flags += ["--model.name", "llama", "--model.path", str(folder), "--logger.wandb", "off"]
    assert main([*command, *flags]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert "model.safetensors is damaged" in lines[0]
    assert not (tmp_path / "runs").exists()


# A published RecFormer is a file, and the Longformer that it was trained from a folder.


@pytest.fixture(scope="module")
def recformer(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recformer")
    size = ModelSettings(width=16, heads=2, layers=1, vocabulary=300, context=96)
    source = small_recformer(ITEMS, size, Key.from_seed(0), items=50, window=64)
    source.model.config.save_pretrained(folder / "base")
    train_tokenizer(texts(ITEMS), 300).save_pretrained(folder / "base")
    state = {f"longformer.{name}": value for name, value in source.model.state_dict().items()}
    torch.save(state, folder / "recformer.bin")
    save_file({n: value.contiguous() for n, value in state.items()}, folder / "r.safetensors")
    return folder


@pytest.fixture
def published(recformer, tmp_path) -> Path:
    return Path(shutil.copytree(recformer, tmp_path / "recformer"))


def refused_recformer(checkpoint, base, match):
    with pytest.raises(UserError, match=match) as caught:
        load_recformer(checkpoint, ITEMS, str(base))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["recformer.bin", "r.safetensors"])
def test_a_checkpoint_of_recformer_is_looked_at_in_the_same_way(published, name):
    path, base = published / name, published / "base"
    assert load_recformer(path, ITEMS, str(base)).n_items == 3
    cut_off(path)
    refused_recformer(path, base, f"{name} is damaged or was cut off")
    path.write_text(POINTER)
    refused_recformer(path, base, f"{name} is a pointer of git-lfs")
    path.write_text("")
    refused_recformer(path, base, f"{name} is empty")
    refused_recformer(published, base, "is a folder: give the file")


def test_a_checkpoint_of_recformer_must_be_named_numbers(published):
    path, base = published / "recformer.bin", published / "base"
    state = torch.load(path)
    torch.save(list(state.values()), path)
    refused_recformer(path, base, "no checkpoint of parameters by their names")
    name = "longformer.encoder.layer.0.output.dense.weight"
    torch.save(state | {name: state[name] * torch.inf}, path)
    refused_recformer(path, base, rf"'{name}' .* NaN or infinite")
    torch.save({n: v for n, v in state.items() if n != name}, path)
    refused_recformer(path, base, f"has no '{name}'")


def test_the_longformer_below_a_recformer_must_be_one(published, whole):
    path, base = published / "recformer.bin", published / "base"
    refused_recformer(path, whole, "is a llama, not a Longformer")
    tokenizer = train_tokenizer(texts(ITEMS), 300)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(base)
    refused_recformer(path, base, "the tokenizer of .* has tokens up to number")
    (base / "tokenizer.json").write_text(POINTER)
    refused_recformer(path, base, "tokenizer.json is a pointer of git-lfs")


def test_either_form_of_what_the_library_reports_is_read():
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    check_loaded(model, {"missing_keys": [], "unexpected_keys": {"score.weight"}}, "m")
    for shapes in ({"a.weight"}, [("a.weight", (1,), (2,))]):
        with pytest.raises(UserError, match=r"other sizes .* 'a\.weight'"):
            check_loaded(model, {"mismatched_keys": shapes}, "m")
    with pytest.raises(UserError, match=r"no place for, 'layers\.7\.q'"):
        check_loaded(model, {"unexpected_keys": {"layers.7.q"}}, "m")
    check_finite([("a", torch.ones(2)), ("b", torch.tensor([torch.finfo(torch.float32).max]))], "m")
