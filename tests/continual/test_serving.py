"""A finished run: measured again, asked for recommendations, attacked; and what can be wrong."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch

from coterie.continual.client import ContinualClient
from coterie.continual.messages import ItemTable
from coterie.continual.settings import ModelSettings, ReplaySettings, Settings, resolve
from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run import serving
from coterie.core.settings.sections import LoggerSettings, RunSettings
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.core.training.train import train


def train_small(out, **changes):
    settings = Settings(
        rounds=3,
        model=ModelSettings(dim=4),
        replay=ReplaySettings(top_n=10),
        logger=LoggerSettings(wandb="off"),
        run=RunSettings(out=str(out), progress=False),
    )
    return train(find_paper("f3crec"), replace(settings, **changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_small(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / run.name)


def test_a_run_leaves_what_the_documentation_lists(run):
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "metrics.csv", "summary.json", "ledger.json", "curves.png"} <= names
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["paper"], summary["method"]) == ("f3crec", "f3crec")
    assert summary["rounds"] == 12
    ledger = json.loads((run / "ledger.json").read_text())
    assert summary["up_bytes"] == sum(r["bytes"] for r in ledger if r["direction"] == "up") > 0


def test_evaluate_measures_what_the_run_measured(run):
    measured = serving.evaluate(run)
    summary = json.loads((run / "summary.json").read_text())["metrics"]
    assert measured == {name: summary[name] for name in measured}
    kinds = ("ndcg@20", "recall@20", "ndcg@20_unseen", "recall@20_unseen")
    assert set(measured) == {f"test/block3/{kind}" for kind in kinds}


def test_recommendations_are_new_to_the_user_and_ordered(run):
    experiment, _ = serving.open_run(run)
    data = experiment.interactions
    user = data.user_names[3]
    rows, notes = serving.recommend(run, user=user, top=7)
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    known = {data.item_names[item] for item in data.item[data.user == 3].tolist()}
    assert not known & {row["item"] for row in rows}
    assert all(row["title"] for row in rows)
    assert notes == []


def test_nobody_is_recommended_what_they_have(run, tmp_path):
    """Of all items, exactly the others: asked for alone, for all at once, and as a newcomer.

    Only the whole list tells: what one has need not be among the best.
    """
    data = serving.open_run(run)[0].interactions
    last, out = data.n_users - 1, tmp_path / "recs.csv"
    own = {u: {data.item_names[i] for i in data.item[data.user == u]} for u in (0, last)}
    history = tmp_path / "history.csv"
    history.write_text("\n".join(["item", *own[last]]))
    serving.recommend_all(run, out, top=data.n_items)
    with out.open(newline="") as file:
        of_all = [(row["user"], row["item"]) for row in csv.DictReader(file)]
    for asked in ({"user": data.user_names[last]}, {"new_user": history}):
        rows, _ = serving.recommend(run, **asked, top=data.n_items)
        assert sorted(row["item"] for row in rows) == sorted({*data.item_names} - own[last])
    for user, names in own.items():
        found = sorted(item for name, item in of_all if name == data.user_names[user])
        assert 0 < len(found) < data.n_items
        assert found == sorted({*data.item_names} - names)


@pytest.mark.parametrize("backbone", ["fedmf", "fedncf", "pfedrec"])
def test_newcomers_are_fitted_to_what_they_have(backbone):
    """Items of four groups: someone with half of a group likes its other half best."""
    groups, size = 4, 10
    items = torch.eye(groups, 8).repeat(size, 1)  # item i is of group i % 4
    table = items + 0.1 * Key.from_seed(1).fold(torch.arange(groups * size)).normal(8)
    half = ContinualClient(resolve(Settings(model=ModelSettings(name=backbone, dim=8))))
    history = [list(range(group, groups * size // 2, groups)) for group in range(groups)]
    keys = Key.from_seed(2).fold(torch.arange(groups))
    found = half.adapt(ItemTable(table), Ragged.from_lists(history), keys)
    scores = half.predict(ItemTable(table), found)
    for group, own in enumerate(scores):
        best = own.topk(size).indices.tolist()
        assert {item % groups for item in best} == {group}


def test_a_new_user_adapts_here_and_leaves_the_run_as_it_is(run, tmp_path):
    before = (run / "checkpoints" / "last.ckpt").read_bytes()
    experiment, _ = serving.open_run(run)
    data = experiment.interactions
    history = tmp_path / "history.csv"
    history.write_text("title\n" + "\n".join(data.titles[:4]) + "\n")
    rows, notes = serving.recommend(run, new_user=history, top=5)
    assert (len(rows), notes) == (5, [])
    assert not set(data.item_names[:4]) & {row["item"] for row in rows}
    assert (run / "checkpoints" / "last.ckpt").read_bytes() == before


def test_the_attack_beats_chance_without_noise_and_loses_to_it(run):
    rows, figure = serving.attack(run, [0.0, 100.0])
    auc = {(row["noise"], row["scorer"]): row["auc"] for row in rows}
    assert auc[0.0, "touched"] > 0.9 > 0.6 > auc[100.0, "norm"] > 0.4
    assert figure.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["recommend", "--user", "nobody"], "user 'nobody' is not in the run's data"),
        (["recommend", "--new-user", "missing.csv"], "there is no file missing.csv"),
        (["recommend", "--all"], "--all and --out FILE.csv go together"),
        (["recommend", "--user", "1", "--out", "a.csv"], "--all and --out FILE.csv go together"),
        (["recommend", "--all", "--out", "nowhere/a.csv"], "there is no folder nowhere"),
    ],
)
def test_bad_requests_are_one_line_and_status_2(run, capsys, arguments, complaint):
    assert main([arguments[0], "--run", str(run), *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_history_without_known_items_names_the_file(run, tmp_path):
    path = tmp_path / "h.csv"
    path.write_text("item\nno-such-item\n")
    with pytest.raises(UserError, match="none of its items is known"):
        serving.recommend(run, new_user=path)
    path.write_text("film\nx\n")
    with pytest.raises(UserError, match="it needs one named item"):
        serving.recommend(run, new_user=path)


def test_unknown_items_among_known_ones_are_said(run, tmp_path, capsys):
    known = serving.open_run(run)[0].interactions.item_names[:2]
    path = tmp_path / "h.csv"
    path.write_text("\n".join(["no, item ", *(f"0,{name}" for name in [*known, *"wxyz"])]))
    assert main(["recommend", "--run", str(run), "--new-user", str(path), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == "coterie: 4 of 6 items unknown: w, x, y, ...\n"
    printed = json.loads(output.out)
    assert printed.pop("notes") == ["4 of 6 items unknown: w, x, y, ..."]
    path.write_text("\n".join(["item", *known]))
    assert main(["recommend", "--run", str(run), "--new-user", str(path), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == {**printed, "notes": []}
    assert not output.err


def test_everybody_is_recommended_what_each_one_is(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")  # sentences in one line
    out = tmp_path / "recs.csv"
    assert main(["recommend", "--run", str(run), "--all", "--out", str(out), "--top", "3"]) == 0
    data = serving.open_run(run)[0].interactions
    assert f"{data.n_users} users" in capsys.readouterr().out
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(dict.fromkeys(row["user"] for row in found)) == data.user_names
    for user in (data.user_names[0], data.user_names[-1]):
        rows, _ = serving.recommend(run, user=user, top=3)
        wanted = [(str(r["rank"]), r["item"], str(r["score"])) for r in rows]
        mine = [(r["rank"], r["item"], r["score"]) for r in found if r["user"] == user]
        assert mine == wanted


def test_a_damaged_checkpoint_is_named(copy):
    path = copy / "checkpoints" / "last.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"last\.ckpt is damaged"):
        serving.evaluate(copy)


def test_a_checkpoint_of_another_backbone_is_refused(copy, tmp_path):
    other = train_small(tmp_path / "other", model=ModelSettings(name="fedncf", dim=4))
    shutil.copy(other / "checkpoints" / "last.ckpt", copy / "checkpoints" / "last.ckpt")
    with pytest.raises(UserError, match=r"of a run with another 'model.name'"):
        serving.evaluate(copy)


def test_resuming_with_another_setting_is_refused(run):
    with pytest.raises(UserError, match=r"cannot resume .* with another 'model\.dim'"):
        train_small(
            run.parents[1],
            model=ModelSettings(dim=8),
            run=RunSettings(out=str(run.parents[1]), name=run.name, resume=True),
        )


def test_a_checkpoint_holds_tensors_and_plain_values_only(run):
    assert torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["federation"]
