"""``coterie export``: plain programs read the files and give the scores that the run gives."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from coterie.assisted.exported import exported_organisation
from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.export import onnx_file
from coterie.core.export.write import export
from coterie.core.run.exported import Asked
from coterie.core.run.products import Products
from coterie.core.run.serving import open_run, recommend

pytestmark = pytest.mark.long

FORMATS = ("peft", "safetensors", "onnx")  # of an organisation of PPLR
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(scope="module")
def runs(short_runs):
    return short_runs


class Opened(dict):
    """The same, opened."""

    def __init__(self, runs):
        super().__init__()
        self.runs = runs

    def __missing__(self, paper):
        self[paper] = open_run(self.runs[paper])
        return self[paper]


@pytest.fixture(scope="module")
def opened(runs):
    return Opened(runs)


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    """Gives a folder that a run was exported to, each once."""
    out, there = tmp_path_factory.mktemp("exported"), {}

    def folder(paper, form, **who):
        key = paper, form, *who.values()
        if key not in there:
            there[key] = out / "-".join(map(str, key))
            export(runs[paper], there[key], form, Asked(**who))
        return there[key]

    return folder


def scored(folder, **inputs):
    """What onnxruntime alone makes of inputs; the answer is of all rows and of the first."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    inputs = {one.name: np.asarray(inputs[one.name]) for one in session.get_inputs()}
    (found,) = session.run(None, inputs)
    (first,) = session.run(None, {name: value[:1] for name, value in inputs.items()})
    np.testing.assert_allclose(first, found[:1], **CLOSE)
    return found


def scores_of(experiment, module, users):
    """Scores of users, ``(U, n_items)``, one after the other."""
    found = []
    for user in users:
        [(_, scores)] = experiment.score_users(module, torch.tensor([user]))
        found.append(scores)
    return torch.cat(found)


def metrics(run):
    return json.loads((run / "summary.json").read_text())["metrics"]


def auc(scores, labels):
    """The share of pairs in the right order, counted one by one."""
    high, low = scores[labels == 1][:, None], scores[labels == 0][None]
    return ((high > low) + 0.5 * (high == low)).mean()


def test_the_rows_of_items_give_the_scores_of_a_user(runs, opened, written):
    run = runs["f3crec"]
    experiment, module = opened["f3crec"]
    folder = written("f3crec", "safetensors", user="7")
    items, own = (load_file(folder / name) for name in ("model.safetensors", "own.safetensors"))
    number = experiment.interactions.user_names.index("7")
    scores = items["items"] @ own["vector"] + own["offset"]
    expected = scores_of(experiment, module, [number])[0].numpy()
    size = np.abs(expected).max()
    np.testing.assert_allclose(scores / size, expected / size, **CLOSE)
    lines = (folder / "items.csv").read_text().splitlines()[1:]
    names = [line.split(",")[1] for line in lines]
    for row in recommend(run, user="7")[0]:
        assert scores[names.index(row["item"])] == pytest.approx(row["score"], abs=6e-5)


def test_a_graph_of_products_takes_vectors_of_any_number_of_users(opened, written):
    """Whose offsets, <w_p, p_u> + b, are no zeros: they are added."""
    experiment, module = opened["f3crec"]
    best = module.store.take(torch.arange(70)).best
    offset = (
        np.einsum("ud,ud->u", best["w_user"].numpy(), best["user"].numpy()) + best["bias"].numpy()
    )
    found = scored(written("f3crec", "onnx"), vector=best["w_item"], offset=offset)
    expected = scores_of(experiment, module, range(70))
    size = float(expected.abs().max())
    assert np.abs(offset).min() > 1e-3 * size
    np.testing.assert_allclose(found / size, expected / size, **CLOSE)


def test_products_add_their_offset():
    found = Products(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))(
        torch.tensor([[3.0, 1.0], [0.0, 2.0]]), torch.tensor([10.0, -20.0])
    )
    assert found.tolist() == [[15.0, 9.0], [-16.0, -22.0]]


def test_nothing_private_leaves_that_was_not_asked_for(opened, written):
    _, module = opened["f3crec"]
    best = module.store.take(torch.arange(200)).best
    private = [row for name in ("user", "w_user", "w_item") for row in best[name].numpy()]
    vectors = best["w_item"].numpy()
    for form in ("safetensors", "onnx"):
        folder = written("f3crec", form)
        held = b"".join(path.read_bytes() for path in folder.iterdir())
        assert not any(row.tobytes() in held for row in private)
        assert not (folder / "own.safetensors").exists()
    own = written("f3crec", "safetensors", client=3)
    assert vectors[3].tobytes() in (own / "own.safetensors").read_bytes()
    assert vectors[3].tobytes() not in (own / "model.safetensors").read_bytes()


def test_a_classifier_is_as_right_as_the_run_was(runs, written):
    run = runs["page"]
    task = open_run(run)[0].task.server_test
    right = scored(written("page", "onnx"), features=task["x"]).argmax(1) == task["y"].numpy()
    assert right.mean() == pytest.approx(metrics(run)["test/server_accuracy"], abs=1e-9)
    tensors = load_file(written("page", "safetensors") / "model.safetensors")
    weight, bias = (
        next(v for n, v in tensors.items() if n.endswith(e)) for e in ("weight", "bias")
    )
    by_hand = (task["x"].numpy() @ weight.T + bias).argmax(1) == task["y"].numpy()
    assert by_hand.mean() == pytest.approx(right.mean(), abs=1e-9)


def test_what_was_tested_is_the_best_round_where_a_paper_says_so(runs, written, tmp_path):
    """Whatever the last checkpoint is: of another round, as here, or damaged."""
    copy = shutil.copytree(runs["page"], tmp_path / "page" / "a")
    (copy / "checkpoints" / "last.ckpt").write_bytes(b"of no round")
    export(copy, tmp_path / "x", "safetensors", Asked())
    expected = load_file(written("page", "safetensors") / "model.safetensors")
    found = load_file(tmp_path / "x" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    (copy / "checkpoints" / "best.ckpt").write_bytes(b"of no round")
    with pytest.raises(UserError, match=r"best\.ckpt"):
        export(copy, tmp_path / "y", "safetensors", Asked())


def test_a_device_has_another_model_than_the_server(written):
    folders = written("page", "safetensors", client=4), written("page", "safetensors")
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert not all(np.array_equal(first[name], second[name]) for name in first)


def test_a_scenario_ranks_as_the_run_did(runs, written):
    run = runs["pf-msmtrec"]
    task = open_run(run)[0].task
    test = task.clients.test
    rows = slice(int(test.offsets[1]), int(test.offsets[2]))
    given = {name: value[rows].numpy() for name, value in test.samples.items()}
    found = scored(written("pf-msmtrec", "onnx", client=1), **given)
    measured = json.loads((run / "clients.json").read_text())[1]
    for number, name in enumerate(task.schema.tasks):
        by_hand = auc(found[:, number], given["labels"][:, number])
        assert by_hand == pytest.approx(measured[name], abs=1e-6)


def of_organisation(opened, client):
    """Users of an organisation, their scores, and rows of tokens as the card says."""
    experiment, module = opened["pplr"]
    users = (experiment.data.client_of == client).nonzero().flatten()[:5].tolist()
    n, most = experiment.data.n_items, experiment.settings.data.max_history
    histories = [experiment.data.split.before_test().take(torch.tensor([u])) for u in users]
    rows = [[n, *one.values.tolist()[-most:]] for one in histories]
    length = max(map(len, rows))
    tokens = np.array([[n + 1] * (length - len(row)) + row for row in rows])
    return tokens, scores_of(experiment, module, users).numpy()


@torch.no_grad()
def logits(model, tokens, n):
    tokens = torch.as_tensor(tokens)
    mask = (tokens != n + 1).long()
    return model.eval()(input_ids=tokens, attention_mask=mask).logits[:, -1, :n].numpy()


def test_a_language_model_answers_as_in_the_run(opened, written, tmp_path, monkeypatch):
    tokens, expected = of_organisation(opened, 1)
    n, size = expected.shape[1], np.abs(expected).max()
    there = {form: written("pplr", form, client=1) for form in FORMATS}
    moved = shutil.copytree(there["peft"], tmp_path / "moved")
    base = AutoModelForCausalLM.from_pretrained(moved / "base")
    assert np.abs(logits(base, tokens, n) - expected).max() > 1e-4 * size
    merged = AutoModelForCausalLM.from_pretrained(there["safetensors"])
    found = {
        "peft": logits(PeftModel.from_pretrained(base, moved), tokens, n),
        "merged": logits(merged, tokens, n),
        "onnx": scored(there["onnx"], tokens=tokens),
    }
    monkeypatch.chdir(moved)
    found["auto"] = logits(AutoPeftModelForCausalLM.from_pretrained("."), tokens, n)
    for name, scores in found.items():
        np.testing.assert_allclose(scores / size, expected / size, **CLOSE, err_msg=name)


def lines_of(folder):
    """Lines of Python that a card gives."""
    return (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]


def test_the_lines_of_a_language_models_card_score_items(written, monkeypatch):
    found = {}
    for form in ("peft", "safetensors"):
        folder = written("pplr", form, client=1)
        monkeypatch.chdir(folder)
        place = {}
        exec(lines_of(folder).replace("FOLDER", "."), place)
        found[form] = place["scores"].detach().numpy()
    n = len(found["peft"])
    [expected] = scored(written("pplr", "onnx", client=1), tokens=np.array([[n, 0, 1, 2]]))
    for form, scores in found.items():
        size = np.abs(expected).max()
        np.testing.assert_allclose(scores / size, expected / size, **CLOSE, err_msg=form)


def test_a_card_tells_of_its_own_format_and_of_its_own_model(runs, written):
    texts = {f: (written("pplr", f, client=1) / "README.md").read_text() for f in FORMATS}
    assert ["AutoPeftModel" in texts[form] for form in FORMATS] == [True, False, False]
    assert "| `test/popularity/recall@10` | " in texts["peft"]
    assert "to compare with: of popularity alone, not of this model" in texts["peft"]
    results = ModelCard(texts["peft"]).data.eval_results
    assert {one.metric_name for one in results} == {
        name
        for name, value in metrics(runs["pplr"]).items()
        if value is not None
        and name.startswith("test/")
        and "popularity" not in name
        and "round" not in name
    }
    assert "`tokens` | int64 (B, length);" in texts["onnx"]
    for text in texts.values():
        assert "They are of the whole run, not of client 1 alone." in text
        said = text.split("## Measured on test data")[1].split("##")[0]
        assert "|  |" not in said  # every number has its meaning
        assert "tensors are below" not in text


def test_an_organisation_adds_up_what_its_peers_answer(opened, written):
    experiment, module = opened["mtal"]
    who = Asked(client=2)
    given = exported_organisation(module, experiment.organisations, experiment.interactions, who)
    one = experiment.organisations.each[2]
    found = scored(written("mtal", "onnx", client=2), **given.graph.inputs)
    users = one.domain.rows[: len(found)].tolist()
    expected = scores_of(experiment, module, users)[:, one.domain.columns]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=5e-6)
    columns = load_file(written("mtal", "onnx", client=2) / "own.safetensors")["columns"]
    assert np.array_equal(columns, one.domain.columns)


ELSEWHERE = """
import os, sys
import numpy as np
sys.modules["coterie"] = None  # as where it is not installed
for number, folder in enumerate(sys.argv[1:]):
    os.chdir(folder)
    given = dict(np.load("given.npz"))
    code = open("README.md").read().split("```python\\n")[1].split("```")[0]
    exec(code, given)
    np.save("found.npy", given["scores"] if "scores" in given else given["logits"])
"""


def test_the_lines_of_the_cards_work_where_coterie_is_not(runs, opened, written, tmp_path):
    experiment, module = opened["f3crec"]
    best = {name: value.numpy() for name, value in module.store.take(torch.arange(3)).best.items()}
    offset = (best["w_user"] * best["user"]).sum(1) + best["bias"]
    expected = scores_of(experiment, module, range(3)).numpy()
    task = open_run(runs["page"])[0].task.server_test
    given = {
        "public": (
            written("f3crec", "safetensors"),
            {"vector": best["w_item"][0], "offset": offset[0]},
        ),
        "own": (written("f3crec", "safetensors", client=1), {}),
        "graph": (written("f3crec", "onnx"), {"vector": best["w_item"], "offset": offset}),
        "page": (written("page", "onnx"), {"features": task["x"][:50].numpy()}),
    }
    folders = []
    for name, (folder, values) in given.items():
        folders.append(Path(shutil.copytree(folder, tmp_path / name)))
        np.savez(folders[-1] / "given.npz", **values)
    subprocess.run([sys.executable, "-c", ELSEWHERE, *map(str, folders)], check=True, timeout=120)
    public, own, graph, page = (np.load(folder / "found.npy") for folder in folders)
    size = np.abs(expected).max()
    np.testing.assert_allclose(np.stack([public, own]) / size, expected[:2] / size, **CLOSE)
    np.testing.assert_allclose(graph / size, expected / size, **CLOSE)
    again = scored(written("page", "onnx"), features=task["x"][:50])
    np.testing.assert_allclose(page, again, **CLOSE)


def test_folders_are_open_to_others_and_name_no_place(runs, written):
    umask = os.umask(0)
    os.umask(umask)
    folders = [written(paper, "onnx") for paper in ("f3crec", "page")]
    folders += [written("pf-msmtrec", "onnx", client=1), written("mtal", "onnx", client=2)]
    folders += [written("pplr", form, client=1) for form in FORMATS]
    places = runs.out, folders[0].parent, os.path.dirname(torch.__file__), os.getcwd()
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
        held = path.read_bytes()
        assert not [place for place in places if str(place).encode() in held], path
    assert not [path for path in folders[0].parent.iterdir() if path.name.startswith(".")]


def test_the_card_is_one_of_hugging_face(runs, written, monkeypatch):
    run, folder = runs["f3crec"], written("f3crec", "safetensors")
    card = ModelCard.load(folder / "README.md")
    named = {one.metric_name: one.metric_value for one in card.data.eval_results}
    tests = {n: v for n, v in metrics(run).items() if n.startswith("test/") and "round" not in n}
    assert named == tests
    assert card.data.library_name == "coterie"
    head = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert {"license", "tags", "metrics", "model-index"} <= head.keys()
    assert "|  |" not in card.text.split("## Measured on test data")[1].split("##")[0]
    for words in ("## What is not in them", "stay with their devices", "| `items` | float32 ("):
        assert words in card.text
    place = {"vector": np.zeros(8, np.float32), "offset": 0.0}
    monkeypatch.chdir(folder)
    exec(lines_of(folder), place)
    assert not place["scores"].any()


def test_a_graph_with_other_scores_is_not_exported(runs, written, tmp_path, monkeypatch):
    model = onnx.load(written("f3crec", "onnx") / "model.onnx")
    (items,) = (one for one in model.graph.initializer if len(one.dims) == 2)
    rows = onnx.numpy_helper.to_array(items).copy()
    rows[3, 0] += 1e-3
    items.CopyFrom(onnx.numpy_helper.from_array(rows, items.name))
    monkeypatch.setattr(onnx_file, "_translated", lambda graph: model)
    with pytest.raises(UserError, match=r"differs by .*above 1e-06: not exported"):
        export(runs["f3crec"], tmp_path / "o", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("paper", "more", "words"),
    [
        ("f3crec", ["--format", "peft"], "f3crec is exported as safetensors, onnx, not as 'peft'"),
        ("f3crec", ["--user", "nobody"], "user 'nobody' is not in the run's data"),
        ("f3crec", ["--client", "-1"], "there is no client -1: choose 0 to"),
        ("page", ["--user", "3"], "the clients of page are no users: say --client NUMBER"),
        ("page", ["--client", "10"], "there is no client 10: choose 0 to 9"),
        ("pf-msmtrec", [], "the server has no model that answers: say --client 0 to"),
        ("mtal", [], "nothing of this run is public, every organisation keeps its models"),
        ("mtal", ["--client", "99"], "there is no client 99: choose 0 to"),
        ("pplr", [], "every organisation has an adapter of its own: say --client 0 to 4"),
        ("pplr", ["--user", "3"], "the clients of this run are organisations"),
        ("pplr", ["--client", "9"], "client 9 is none of the run: choose 0 to 4"),
        ("f3crec", ["--state", "x"], "--state is of a model that is split between machines"),
        ("f3crec", ["--client", "1", "--user", "1"], "not allowed with argument"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(runs, tmp_path, capsys, paper, more, words):
    argv = ["export", "--run", str(runs[paper]), "--to", str(tmp_path / "x"), *more]
    capsys.readouterr()  # of training
    assert main(argv) == 2
    said = capsys.readouterr()
    # A backbone that this process has not made yet is announced.
    (error,) = [line for line in said.err.splitlines() if not line.startswith("pre-training ")]
    assert words in error
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_kept(runs, tmp_path, capsys):
    (tmp_path / "x").mkdir()
    run = runs["f3crec"]
    capsys.readouterr()  # of training
    assert main(["export", "--run", str(run), "--to", str(tmp_path / "x")]) == 2
    assert "is there already: choose another folder by --to" in capsys.readouterr().err
    assert not list((tmp_path / "x").iterdir())


def test_the_command_says_what_it_wrote(runs, tmp_path, capsys):
    argv = ["export", "--run", str(runs["page"]), "--to", str(tmp_path / "x"), "--json"]
    capsys.readouterr()  # of training
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["difference"] == 0.0
    assert found["files"] == ["README.md", "coterie.json", "model.safetensors"]
    assert found["tested"] == f"round {metrics(runs['page'])['test/best_round']:g}"
