"""A causal model from a folder: the README's line, answers alone, its digest in the card."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone import _in_folder, read_backbone
from coterie.llm.backbone_settings import GenerationSettings, ModelSettings
from coterie.llm.backbones.causal_text import load_causal_text
from coterie.llm.backbones.text import bigrec_template, train_tokenizer
from coterie.llm.data.examples import Examples
from coterie.llm.experiment import Experiment
from coterie.llm.readings import resolve
from coterie.llm.settings import FederatedDataSettings, Settings

TITLES = ["Red King", "Blue River", "Old Night", "The Red Night of the Blue King"]
EXAMPLES = Examples(Ragged.from_lists([[0, 1], [3], [2, 3, 1]]), torch.tensor([3, 0, 2]))


def save(path: Path, seed: int = 0, titles: list[str] = TITLES) -> Path:
    tokenizer = train_tokenizer(titles, 400)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    special = {f"{n}_token_id": getattr(tokenizer, f"{n}_token_id") for n in ("bos", "eos", "pad")}
    with Key.from_seed(seed).torch_rng():
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            num_hidden_layers=2,
            max_position_embeddings=1024,
            **shape,
            **special,
        )
        LlamaForCausalLM(config).save_pretrained(str(path))
    tokenizer.save_pretrained(str(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    titles = Experiment(Settings()).data.catalogue.require_titles()
    return save(tmp_path_factory.mktemp("llama") / "model", titles=titles)


@pytest.mark.long
def test_the_line_of_the_readme_starts(folder, tmp_path, capsys):
    """With the context, the prompt and the answers of the configuration, on few users."""
    few = "--rounds 1 --data.shots 10 --data.valid_users 1 --data.public 0.9 --generation.beams 1"
    quiet = f"--run.out {tmp_path} --run.progress false --logger.wandb off"
    line = f"train pplr --model.name llama --model.path {folder}"
    assert main(f"{line} {few} {quiet}".split()) == 0
    assert "test/recall@10" in capsys.readouterr().out


@pytest.mark.parametrize("on_inputs", [True, False])
def test_the_loss_is_of_answers_alone_or_of_the_prompt_too(folder, on_inputs):
    made = load_causal_text(
        str(folder), TITLES, bigrec_template(), GenerationSettings(), on_inputs=on_inputs
    ).double()
    got = made.network_loss(EXAMPLES)
    prompts, answers = made.text.prompts(EXAMPLES.history), made.text.answers(EXAMPLES.target)
    total, count = 0.0, 0
    for prompt, answer in zip(prompts, answers, strict=True):
        row = torch.tensor([*prompt, *answer])
        logits = made.model(input_ids=row[None]).logits[0, :-1]
        first = 1 if on_inputs else len(prompt)
        total += float(cross_entropy(logits[first - 1 :], row[first:], reduction="sum").detach())
        count += len(row) - first
    assert float(got.detach()) == pytest.approx(total / count, rel=1e-6)  # in float32


def test_of_answers_alone_no_other_logits_are_made(folder):
    made = load_causal_text(
        str(folder), TITLES, bigrec_template(), GenerationSettings(), on_inputs=False
    )
    seen = []
    made.model.lm_head.register_forward_hook(lambda m, given, out: seen.append(out.shape))
    made.network_loss(EXAMPLES)
    longest = max(map(len, made.text.answers(EXAMPLES.target)))
    assert [shape[1] for shape in seen] == [longest + 1]


def chosen(path: str, **model) -> Settings:
    data = FederatedDataSettings(clients=2, shots=20)
    return resolve(
        Settings(data=data, model=ModelSettings(name="llama", path=path, context=512, **model))
    )


def test_the_compact_prompt_ends_titles_by_the_models_own_token(folder):
    backbone = Experiment(chosen(str(folder), prompt="compact")).backbone
    tokenizer = backbone.text.tokenizer
    [row] = backbone.text.prompts(Ragged.from_lists([[0, 1]]))
    end = tokenizer.eos_token_id
    titles = backbone.text.titles[:2]
    words = [tokenizer(title, add_special_tokens=False)["input_ids"] for title in titles]
    assert [*words[0], end, *words[1], end] == [
        token for token in row if token not in ({tokenizer.bos_token_id} - {end})
    ]
    assert resolve(chosen(str(folder))).model.prompt == "bigrec"
    assert resolve(Settings(model=ModelSettings(name="tiny-text"))).model.prompt == "compact"


def test_every_party_checks_that_it_has_the_model_of_the_card(folder, tmp_path):
    experiment = Experiment(chosen(str(folder)))
    public = experiment.public()
    own = replace(experiment.settings, model=replace(experiment.settings.model, path="model"))
    there = tmp_path / "there"
    there.mkdir()
    (there / "model").symlink_to(folder)
    read = read_backbone(own, public, there)
    assert read.constants() == experiment.backbone.constants()
    titles = experiment.data.catalogue.require_titles()
    for name, other in (("weights", save(tmp_path / "other", 1, titles)), ("words", folder)):
        here = tmp_path / name
        here.mkdir()
        if name == "weights":
            (here / "model").symlink_to(other)
        else:  # the same weights, other tokens
            save(here / "model", 0, titles)
            backwards = train_tokenizer(titles[:20], len(read.text.tokenizer))
            backwards.save_pretrained(str(here / "model"))
        with pytest.raises(UserError, match="is not that of the card: get the same files"):
            read_backbone(own, public, here)


def test_a_name_on_the_hub_becomes_no_folder(folder, tmp_path, monkeypatch):
    """But a folder of that name in the party's own is taken."""
    from coterie.llm.backbones import hub

    monkeypatch.setattr(hub, "offline", lambda: True)
    settings, public = chosen("nobody/has-this"), {"items": {"n_items": 1, "source": ""}}
    public["items"]["titles"] = ["a"]
    with pytest.raises(UserError, match="cannot load 'nobody/has-this'"):
        read_backbone(settings, public, tmp_path)
    with pytest.raises(UserError, match="cannot load 'gpt-nobody'"):
        read_backbone(
            chosen("gpt-nobody"), {"items": {"n_items": 1, "source": "", "titles": ["a"]}}, tmp_path
        )
    own = replace(settings, model=ModelSettings(name="recformer", path="a.bin"))
    placed = _in_folder(own, tmp_path)  # a file, never one of where it runs
    assert placed.model.path == str(tmp_path / "a.bin")
    public = Experiment(chosen(str(folder))).public()
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "has-this").symlink_to(folder)
    assert read_backbone(settings, public, tmp_path).weights == public["backbone"]
