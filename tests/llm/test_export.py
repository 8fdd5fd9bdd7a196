"""Saving an adapter or a merged model: the same scores, and refusals by name."""

import errno
import json
import os
from dataclasses import replace

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file
from tests.llm.every_backbone import KINDS, TITLES, make
from tests.llm.exported import export_adapter, export_merged, read_adapter
from tests.llm.organisations import examples
from transformers import AutoModelForCausalLM, AutoTokenizer

from coterie.core.cli.main import main
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run.serving import open_run
from coterie.core.settings.sections import LoggerSettings, RunSettings
from coterie.core.tensors import saved
from coterie.core.tensors.stacked import Ragged
from coterie.core.training.train import train
from coterie.llm import export as folders
from coterie.llm import trained_run
from coterie.llm.adapter import Adapter
from coterie.llm.backbone_settings import ModelSettings, PretrainSettings, SplitSettings
from coterie.llm.backbones.recformer import RecformerModel
from coterie.llm.export import EMBEDDINGS, answers
from coterie.llm.settings import FederatedDataSettings, Settings
from coterie.llm.split.part import Kept
from coterie.llm.trained_run import TrainedRun, inside_middle

pytestmark = [pytest.mark.usefixtures("rounds_alone"), pytest.mark.long]

HISTORY = Ragged.from_lists([[0, 3, 5], [], [7], [1, 2, 3, 4]])


def items():
    names = [f"i{number}" for number in range(len(TITLES))]
    none = torch.empty(0, dtype=torch.int64)
    about = {"titles": TITLES, "genres": None, "source": "a test"}
    return Interactions(none, none, None, None, user_names=[], item_names=names, **about)


def save(folder, kind="tiny-item", **how):
    model = make(kind, **how)
    export_adapter(model, examples(5, seed=1), items(), folder)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_comes_back_bit_for_bit(kind, tmp_path):
    model = save(tmp_path / "a", kind)
    fresh = make(kind, trained=False)
    before = fresh.scores(HISTORY)
    read_adapter(tmp_path / "a", fresh)
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
    plain.model = PeftModel.from_pretrained(plain.model, str(tmp_path / "a")).base_model.model
    # Factors without requires_grad, as peft loads them, take another kernel of torch.
    torch.testing.assert_close(answers(plain, data), answers(model, data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["tiny-item", "tiny-text"])
def test_the_folder_alone_is_enough_elsewhere(kind, tmp_path, monkeypatch):
    """The adapter names its frozen model, which lies beside it, readable by everybody."""
    model, data = save(tmp_path / "a", kind), examples(5, seed=2)
    (tmp_path / "a").rename(tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b")
    found = AutoPeftModelForCausalLM.from_pretrained(".")
    plain = make(kind, rank=None, seed=9)
    plain.model = found.base_model.model
    torch.testing.assert_close(answers(plain, data), answers(model, data), rtol=1e-5, atol=1e-5)
    base = AutoModelForCausalLM.from_pretrained(str(tmp_path / "b" / "base")).state_dict()
    for name, value in make(kind, rank=None).model.state_dict().items():
        assert torch.equal(base[name], value)  # as before the first round
    umask = os.umask(0)
    os.umask(umask)
    files = [path for path in (tmp_path / "b").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}


def test_a_published_model_is_named_and_not_copied(tmp_path):
    model = make("tiny-item")
    model.model.config.name_or_path = "somebody/llama"
    export_adapter(model, examples(5, seed=1), items(), tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "somebody/llama"
    assert not (tmp_path / "a" / "base").exists()


def test_a_model_of_a_folder_here_is_named_without_its_place(tmp_path):
    model = make("tiny-item")
    (tmp_path / "mine").mkdir()
    model.model.config.name_or_path = str(tmp_path / "mine")
    export_adapter(model, examples(5, seed=1), items(), tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "mine"


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_model_answers_alike(kind, tmp_path):
    model, data = make(kind), examples(5, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    difference = export_merged(model, data, items(), tmp_path / "m")
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
    export_merged(model, examples(5, seed=1), items(), tmp_path / "m")
    save(tmp_path / "a")
    base = make("tiny-item", rank=None).model
    peft = PeftModel.from_pretrained(base, str(tmp_path / "a")).merge_and_unload().state_dict()
    for name, value in load_file(tmp_path / "m" / "model.safetensors").items():
        torch.testing.assert_close(value, peft[name], rtol=1e-6, atol=1e-7)


def test_a_wholly_trained_model_is_saved_exactly(tmp_path):
    model, data = make("tiny-item", rank=None), examples(5, seed=1)
    assert export_merged(model, data, items(), tmp_path / "m") == 0.0
    with pytest.raises(
        UserError, match=r"no LoRA, all its parameters are trained.*--format safetensors"
    ):
        export_adapter(model, data, items(), tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("export", [export_adapter, export_merged])
def test_a_folder_that_is_there_is_kept(export, tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="is there already: choose another folder by --to"):
        export(make("tiny-item"), examples(5, seed=1), items(), tmp_path / "a")
    assert not list((tmp_path / "a").iterdir())


def test_an_untrained_adapter_is_not_exported(tmp_path):
    with pytest.raises(UserError, match="the adapter is empty: all its factors B are 0"):
        save(tmp_path / "a", trained=False)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders, "save_file", full)
    with pytest.raises(UserError, match="no space left"):
        save(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_what_reads_back_otherwise_is_not_exported(tmp_path, monkeypatch):
    def wrong(tensors, path, metadata):
        save_file({name: tensor + 1e-3 for name, tensor in tensors.items()}, path)

    monkeypatch.setattr(folders, "save_file", wrong)
    model = make("tiny-item")
    row = Adapter(model.named_parameters()).row()
    with pytest.raises(UserError, match="does not give the same scores: not exported"):
        export_adapter(model, examples(5, seed=1), items(), tmp_path / "a")
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
    export_adapter(model, examples(5, seed=1), items(), tmp_path / "a")
    assert torch.equal(model.scores(HISTORY), scores)
    fresh = make("recformer", trained=False)
    read_adapter(tmp_path / "a", fresh)
    assert torch.equal(fresh.scores(HISTORY), scores)
    export_merged(model, examples(5, seed=1), items(), tmp_path / "m")
    saved = load_file(tmp_path / "m" / EMBEDDINGS)["item_embeddings"]
    assert torch.equal(saved, model.frozen_items)
    assert torch.equal(model.scores(HISTORY), scores)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on the sample, split behind layer 1."""
    out = tmp_path_factory.mktemp("runs")
    settings = Settings(
        rounds=1,
        data=FederatedDataSettings(shots=120),
        model=ModelSettings(layers=3, width=16, trained="lora"),
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


def test_the_other_half_is_found_where_its_server_keeps_it(run, tmp_path):
    here, there = TrainedRun(run), TrainedRun(run)
    part = here._state.best_middle.part
    elsewhere = Kept(number=1, run="abc")
    there._state = replace(there._state, best_middle=elsewhere)
    with pytest.raises(UserError, match="give its folder, as --state"):
        there.row(0)
    there._server = tmp_path
    with pytest.raises(UserError, match=r"abc/1\.pt is missing"):
        there.row(0)
    (tmp_path / "abc").mkdir()
    saved.save({"rows": part.rows}, tmp_path / "abc" / "1.pt")
    assert torch.equal(there.row(3), here.row(3))
    there._state = replace(there._state, best_middle=Kept(run="abc"))
    start = there.row(2)
    inside = inside_middle(here._client.backbone, 1)
    assert torch.equal(start[inside], here._start[inside])
    assert torch.equal(start[~inside], here.row(2)[~inside])


@pytest.mark.usefixtures("own_backbones")
def test_the_attack_reads_the_other_half_where_its_server_keeps_it(
    run, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command = ["llm", "attack", "--run", str(run), "--client", "3", "--seeds", "1", "--steps", "3"]
    command += ["--json", "--out", str(tmp_path / "a.png")]
    assert main(command) == 0
    here = json.loads(capsys.readouterr().out)
    rows = TrainedRun(run)._state.best_middle.part.rows

    def opened(*given):
        experiment, module = open_run(*given)
        state = replace(module.server_state, best_middle=Kept(number=1, run="abc"))
        module.server_state = state
        return experiment, module

    monkeypatch.setattr(trained_run, "open_run", opened)
    assert main(command) == 2
    assert "give its folder, as --state" in capsys.readouterr().err
    (tmp_path / "kept" / "abc").mkdir(parents=True)
    saved.save({"rows": rows}, tmp_path / "kept" / "abc" / "1.pt")
    assert main([*command, "--state", str(tmp_path / "kept")]) == 0
    assert json.loads(capsys.readouterr().out) == here
    saved.save({"rows": rows.flip(1)}, tmp_path / "kept" / "abc" / "1.pt")
    assert main([*command, "--state", str(tmp_path / "kept")]) == 0
    assert json.loads(capsys.readouterr().out) != here


@pytest.mark.usefixtures("own_backbones")
def test_the_command_exports_a_client(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["llm", "export", "--run", str(run), "--client", "2", "--to"]
    assert main([*argv, "a/b"]) == 0
    assert "Read back, it answers as before, bit for bit." in capsys.readouterr().out
    trained = TrainedRun(run)
    history = trained.experiment.data.clients.test[2].history
    scores = trained.backbone(2).scores(history)
    backbone = trained.start()
    read_adapter(tmp_path / "a" / "b", backbone)
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
    found = json.loads(capsys.readouterr().out)
    assert main([*argv, "--client", "1", "--json"]) == 0
    of_one = json.loads(capsys.readouterr().out)
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
