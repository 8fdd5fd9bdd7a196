"""Saving an adapter or a merged model: the same scores, and refusals by name."""

import errno
import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.llm.every_backbone import KINDS, TITLES, make
from tests.llm.organisations import examples
from transformers import AutoModelForCausalLM, AutoTokenizer

from coterie.core.cli.main import main
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run.serving import open_run
from coterie.core.run.train import train
from coterie.core.settings.sections import LoggerSettings, RunSettings
from coterie.core.tensors.ragged import Ragged
from coterie.llm.adapter import Adapter
from coterie.llm.backbones.network import network_of
from coterie.llm.backbones.recformer.model import RecformerModel
from coterie.llm.export.adapter_files import load_adapter
from coterie.llm.export.folders import adapter_files, answers, export_adapter, export_merged
from coterie.llm.export.item_embeddings import EMBEDDINGS, read_items
from coterie.llm.export.trained import TrainedRun
from coterie.llm.settings.backbone import ModelSettings, PretrainSettings
from coterie.llm.settings.run import Settings
from coterie.llm.settings.split import SplitSettings

HISTORY = Ragged.from_lists([[0, 3, 5], [], [7], [1, 2, 3, 4]])
ORIGIN = {"run": "a", "client": 1, "round": 2}
WEIGHTS = "adapter_model.safetensors"


def items():
    names = [f"i{number}" for number in range(len(TITLES))]
    none = torch.empty(0, dtype=torch.int64)
    about = {"titles": TITLES, "genres": None, "source": "a test"}
    return Interactions(none, none, None, None, user_names=[], item_names=names, **about)


def save(folder, kind="tiny-item", **how):
    model = make(kind, **how)
    export_adapter(model, examples(5, seed=1), items(), ORIGIN, folder)
    return model


def tamper(folder, **changes):
    """Replace tensors by name; None takes one away."""
    tensors = load_file(folder / WEIGHTS) | changes
    save_file({name: t for name, t in tensors.items() if t is not None}, folder / WEIGHTS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_comes_back_bit_for_bit(kind, tmp_path):
    model = save(tmp_path / "a", kind)
    fresh = make(kind, trained=False)
    before = fresh.scores(HISTORY)
    load_adapter(tmp_path / "a", fresh)
    saved, read = (Adapter(m.named_parameters()).row() for m in (model, fresh))
    assert torch.equal(saved, read)
    assert torch.equal(model.scores(HISTORY), fresh.scores(HISTORY))
    if kind != "tiny-text":  # what an untrained model writes may well be the same
        assert not torch.equal(before, fresh.scores(HISTORY))
    table = (tmp_path / "a" / "items.csv").read_text().splitlines()
    assert table[:2] == ["number,item,title", f"0,i0,{TITLES[0]}"]
    assert len(table) == 1 + len(TITLES)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("kind", KINDS)
def test_peft_reads_the_adapter(kind, tmp_path):
    model, data = save(tmp_path / "a", kind), examples(5, seed=2)
    plain = make(kind, rank=None)
    plain.model = PeftModel.from_pretrained(network_of(plain), str(tmp_path / "a")).base_model.model
    # Factors without requires_grad, as peft loads them, take another kernel of torch.
    torch.testing.assert_close(answers(plain, data), answers(model, data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_model_answers_alike(kind, tmp_path):
    model, data = make(kind), examples(5, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    difference = export_merged(model, data, items(), ORIGIN, tmp_path / "m")
    assert difference < 1e-5
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    plain = make(kind, rank=None)
    kind_of = RecformerModel if kind == "recformer" else AutoModelForCausalLM
    more = {"item_positions": 21} if kind == "recformer" else {}
    plain.model = kind_of.from_pretrained(str(tmp_path / "m"), **more)
    torch.testing.assert_close(answers(plain, data), answers(model, data), rtol=1e-4, atol=1e-5)
    if kind == "tiny-item":
        torch.testing.assert_close(
            plain.scores(HISTORY), model.scores(HISTORY), rtol=1e-5, atol=1e-5
        )
    else:
        own = (model.text if kind == "tiny-text" else model.items).tokenizer
        read = AutoTokenizer.from_pretrained(str(tmp_path / "m"))
        assert read("Red Ox")["input_ids"] == own("Red Ox")["input_ids"]


def test_peft_merges_to_the_same_weights(tmp_path):
    model = make("tiny-item")
    export_merged(model, examples(5, seed=1), items(), ORIGIN, tmp_path / "m")
    save(tmp_path / "a")
    base = network_of(make("tiny-item", rank=None))
    peft = PeftModel.from_pretrained(base, str(tmp_path / "a")).merge_and_unload().state_dict()
    for name, value in load_file(tmp_path / "m" / "model.safetensors").items():
        torch.testing.assert_close(value, peft[name], rtol=1e-6, atol=1e-7)


def test_a_wholly_trained_model_is_saved_exactly(tmp_path):
    model, data = make("tiny-item", rank=None), examples(5, seed=1)
    assert export_merged(model, data, items(), ORIGIN, tmp_path / "m") == 0.0
    with pytest.raises(UserError, match=r"no LoRA, all its parameters are trained.*--merged"):
        export_adapter(model, data, items(), ORIGIN, tmp_path / "a")
    with pytest.raises(UserError, match="no LoRA"):
        load_adapter(tmp_path / "m", model)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def _delete(name):
    return lambda folder: (folder / name).unlink()


def _write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def _config(**changes):
    def change(folder):
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_delete(WEIGHTS), f"is no adapter: it has no {WEIGHTS}"),
        (_delete("adapter_config.json"), "is no adapter: it has no adapter_config.json"),
        (_write(WEIGHTS, b""), "is damaged"),
        (_write(WEIGHTS, b"\x08" + bytes(30)), "is damaged"),
        (_write("adapter_config.json", b"{"), "adapter_config.json is damaged"),
        (_write("adapter_config.json", b"[]"), "adapter of type None, not of type LORA"),
        (_config(peft_type="IA3"), "adapter of type IA3, not of type LORA"),
        (_config(r=4), "LoRA of rank 4, the backbone's is 2: build the backbone with --lora.rank"),
        (_config(lora_alpha=9), "LoRA of alpha 9, the backbone's is 4: .* --lora.alpha 9"),
        (_config(use_dora=True), "an adapter with 'use_dora', which the backbone has not"),
        (lambda f: save_file({}, f / WEIGHTS), "is empty: it holds no number"),
        (lambda f: tamper(f, **{FIRST: None}), f"lacks '{FIRST}'"),
        (lambda f: tamper(f, other=torch.ones(1)), "has 'other', for which the backbone has no"),
        (
            lambda f: tamper(f, **{FIRST: torch.ones(3, 8)}),
            r"is \(3, 8\), the backbone's is \(2, 8\): it is of another model or another rank",
        ),
        (
            lambda f: tamper(f, **{FIRST: torch.full((2, 8), torch.nan)}),
            f"has numbers in '{FIRST}' that are not finite",
        ),
        (
            lambda f: tamper(
                f,
                **{n: 0 * t for n, t in load_file(f / WEIGHTS).items() if "lora_B" in n},
            ),
            "is empty: all its factors B are 0",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(damage, message, tmp_path):
    folder = tmp_path / "a"
    save(folder)
    damage(folder)
    model = make("tiny-item", seed=0)
    row = Adapter(model.named_parameters()).row()
    with pytest.raises(UserError, match=message) as caught:
        load_adapter(folder, model)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert torch.equal(Adapter(model.named_parameters()).row(), row)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rank": 3}, "LoRA of rank 2, the backbone's is 3"),
        ({"alpha": 8.0}, "LoRA of alpha 4.0, the backbone's is 8"),
        ({"layers": 4}, "lacks 'base_model.model.model.layers.3.self_attn"),
        (
            {"layers": 2},
            "has 'base_model.model.model.layers.2.*for which the backbone has no place",
        ),
        ({"kind": "recformer"}, "lacks 'base_model.model.encoder.layer.0"),
        ({"seed": 1}, "an adapter for another frozen model of the same shape"),
    ],
)
def test_another_model_is_refused_by_name(other, message, tmp_path):
    save(tmp_path / "a")
    with pytest.raises(UserError, match=message):
        load_adapter(tmp_path / "a", make(other.pop("kind", "tiny-item"), **other))


def test_an_adapter_of_peft_itself_is_read(tmp_path):
    save(tmp_path / "a")
    (tmp_path / "a" / "coterie.json").unlink()
    load_adapter(tmp_path / "a", make("tiny-item", seed=1))  # nothing tells its base


@pytest.mark.parametrize("export", [export_adapter, export_merged])
def test_a_folder_that_is_there_is_kept(export, tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="is there already: choose another folder by --to"):
        export(make("tiny-item"), examples(5, seed=1), items(), ORIGIN, tmp_path / "a")
    assert not list((tmp_path / "a").iterdir())


def test_an_untrained_adapter_is_not_exported(tmp_path):
    with pytest.raises(UserError, match="the adapter is empty: all its factors B are 0"):
        save(tmp_path / "a", trained=False)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(adapter_files, "save_file", full)
    with pytest.raises(UserError, match="no space left"):
        save(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_what_reads_back_otherwise_is_not_exported(tmp_path, monkeypatch):
    def wrong(tensors, path, metadata):
        save_file({name: tensor + 1e-3 for name, tensor in tensors.items()}, path)

    monkeypatch.setattr(adapter_files, "save_file", wrong)
    model = make("tiny-item")
    row = Adapter(model.named_parameters()).row()
    with pytest.raises(UserError, match="does not give the same scores: not exported"):
        export_adapter(model, examples(5, seed=1), items(), ORIGIN, tmp_path / "a")
    assert torch.equal(Adapter(model.named_parameters()).row(), row)
    assert not list(tmp_path.iterdir())


def frozen(rank=2):
    """A RecFormer in stage 2: its items are embedded as they once were."""
    model = make("recformer", rank=rank)
    model.frozen_items = make("recformer", rank=rank, seed=1).catalogue()
    model.prepare()
    return model


def test_items_frozen_in_stage_2_come_back(tmp_path):
    model = frozen()
    scores = model.scores(HISTORY)
    assert not torch.allclose(scores, make("recformer").scores(HISTORY))
    export_adapter(model, examples(5, seed=1), items(), ORIGIN, tmp_path / "a")
    assert torch.equal(model.scores(HISTORY), scores)
    fresh = make("recformer", trained=False)
    load_adapter(tmp_path / "a", fresh)
    assert torch.equal(fresh.scores(HISTORY), scores)
    (tmp_path / "a" / EMBEDDINGS).unlink()
    load_adapter(tmp_path / "a", fresh)
    assert not torch.allclose(fresh.scores(HISTORY), scores)
    export_merged(model, examples(5, seed=1), items(), ORIGIN, tmp_path / "m")
    assert torch.equal(read_items(tmp_path / "m", model), model.frozen_items)
    assert torch.equal(model.scores(HISTORY), scores)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda good: {"item_embeddings": good[:3]}, "of other items or another model"),
        (lambda good: {"other": good}, "of other items or another model"),
        (lambda good: {"item_embeddings": good / 0}, "not finite"),
        (None, "damaged"),
    ],
)
def test_frozen_items_that_do_not_fit_are_refused(change, message, tmp_path):
    model = frozen()
    export_adapter(model, examples(5, seed=1), items(), ORIGIN, tmp_path / "a")
    path = tmp_path / "a" / EMBEDDINGS
    if change is None:
        path.write_bytes(b"nothing")
    else:
        save_file(change(load_file(path)["item_embeddings"]), path)
    fresh = make("recformer", trained=False)
    before = fresh.scores(HISTORY)
    with pytest.raises(UserError, match=message) as caught:
        load_adapter(tmp_path / "a", fresh)
    assert "\n" not in str(caught.value)
    fresh.prepare()
    assert torch.equal(fresh.scores(HISTORY), before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on the sample, split behind layer 1."""
    out = tmp_path_factory.mktemp("runs")
    settings = Settings(
        rounds=1,
        model=ModelSettings(layers=3, trained="lora"),
        split=SplitSettings(k=1),
        pretrain=PretrainSettings(steps=5),
        logger=LoggerSettings(wandb="off"),
        run=RunSettings(out=str(out), name="split", progress=False),
    )
    train(find_paper("pplr"), settings)
    return out / "pplr" / "split"


def test_both_halves_are_put_together(run):
    whole = TrainedRun(run)
    experiment, module = open_run(run)
    server, state = module.federation.server, module.server_state
    history = experiment.data.clients.test[0].history
    for client in (0, 3):
        served = server.served(state, client)
        split = module.federation.client.score(client, served, history)
        torch.testing.assert_close(whole.backbone(client).scores(history), split)
    assert not torch.equal(whole.row(0), whole.row(3))
    with pytest.raises(UserError, match="client 5 is none of the run: choose 0 to 4"):
        whole.row(5)


def test_the_command_exports_a_client(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["llm", "export", "--run", str(run), "--client", "2", "--to"]
    assert main([*argv, "a/b"]) == 0
    assert "Read back, it answers as before, bit for bit." in capsys.readouterr().out
    trained = TrainedRun(run)
    history = trained.experiment.data.clients.test[2].history
    scores = trained.backbone(2).scores(history)
    backbone = trained.start()
    load_adapter(tmp_path / "a" / "b", backbone)
    assert torch.equal(backbone.scores(history), scores)
    assert main([*argv, "m", "--merged", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] < 1e-5
    merged = TrainedRun(run).start()
    merged.model = AutoModelForCausalLM.from_pretrained("m")
    torch.testing.assert_close(merged.scores(history), scores, rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "m"]  # no cache in the way


def test_the_command_attacks_a_run(run, capsys):
    argv = ["llm", "attack", "--run", str(run), "--steps", "20", "--seeds", "1"]
    assert main([*argv, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main([*argv, "--client", "1", "--json"]) == 0
    of_one = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == len(of_one) == 3
    assert of_one[0]["users"] < found[0]["users"]
    assert (run / "attack.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--run {runs}/split --client 5 --to x", "client 5 is none of the run: choose 0 to 4"),
        ("--run {runs}/split --client -1 --to x", "client -1 is none of the run"),
        ("--run {runs}/slit --client 0 --to x", "did you mean 'split'?"),
        ("--run {runs}/split --client 0", "the following arguments are required: --to"),
        ("--run {runs}/split --client a --to x", "argument --client: invalid int value: 'a'"),
        ("--run {runs}/split --client 0 --to {runs}", "is there already: choose another folder"),
    ],
)
def test_mistakes_are_one_line(argv, message, run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["llm", "export", *argv.format(runs=run.parent).split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())
