"""What a run of PF-MSMTrec leaves beside each scenario alone, FedAvg and one pooled model."""

import json
import math

import pytest
import torch
from matplotlib.image import imread
from sklearn.metrics import roc_auc_score

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.settings.schema import changed
from coterie.core.settings.sections import PrivacySettings
from coterie.core.training.train import train
from coterie.msmt.comparison import PICTURE, TABLE, followed, of_scenarios, oracle, panels, table
from coterie.msmt.data.task import Schema, Task
from coterie.msmt.experiment import Experiment
from coterie.msmt.paper import PAPER
from coterie.msmt.settings import ScenarioData, Settings

TINY = {
    "data.name": "world",
    "data.rows": "[32,16]",
    "data.valid_rows": 40,
    "data.test_rows": 60,
    "rounds": 2,
    "train.batch_size": 16,
    "train.lr": 0.02,
    "model.embedding": 2,
    "model.experts": 2,
    "model.expert_layers": "[4]",
    "model.tower_layers": "[4]",
    "run.progress": "false",
    "logger.wandb": "off",
}
OTHERS = {"alone": "local", "FedAvg": "fedavg", "pooled": "central"}
NOISE = {"privacy__noise": "laplace", "privacy__scale": 0.001, "privacy__clip": 1.0}


def settings_of(folder, **more):
    flags = {**TINY, "run.out": folder, **{n.replace("__", "."): v for n, v in more.items()}}
    return configure(PAPER, [f"--{name}={value}" for name, value in flags.items()]).settings


def by_hand(settings, who):
    """Test AUCs of each scenario in the round of the best validation AUC, and that round."""
    run, best, found = FederatedRun(Experiment(settings).federation()), -1.0, {}
    while not run.finished:
        run.advance()
        score = run.journal.scalars["eval/auc"]
        if score > best:
            best, chosen = score, run.round
            found = {
                task: run.journal.clients[f"test/{who}_auc_{task}"][1].tolist()
                for task in ("ctr", "ctcvr")
            }
    return found, chosen


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with noise on its updates, beside methods some of which have none."""
    torch.set_num_threads(1)  # as every test has it
    settings = settings_of(tmp_path_factory.mktemp("run"), compare="true", **NOISE)
    return settings, train(PAPER, settings)


def test_every_method_has_its_best_round(finished):
    settings, folder = finished
    rows = json.loads((folder / "clients.json").read_text())
    rounds = set()
    whose = {"alone": "personal", "FedAvg": "global", "pooled": "global"}
    for name, method in {"PF-MSMTrec": "pf-msmtrec", **OTHERS}.items():
        without = {"privacy": PrivacySettings()} if method in ("local", "central") else {}
        other = changed(settings, {"method": method, **without})
        expected, chosen = by_hand(other, whose.get(name, "personal"))
        rounds.add(chosen)
        for task, values in expected.items():
            found = [row[name] for row in rows if row["task"] == task]
            assert found[:2] == pytest.approx(values, abs=1e-12)
            assert found[2] == pytest.approx(sum(values) / 2, abs=1e-12)
    assert min(rounds) < 2  # else the last round would do


def test_true_probabilities_are_the_bound(finished):
    settings, folder = finished
    rows = json.loads((folder / "clients.json").read_text())
    task = Experiment(settings).task
    labels = task.clients.test.samples["labels"]
    for number, name in enumerate(("ctr", "ctcvr")):
        expected = [
            roc_auc_score(labels[part, number], task.truth[part, number])
            for part in (slice(0, 60), slice(60, 120))
        ]
        found = [row["best possible"] for row in rows if row["task"] == name]
        assert found[:2] == pytest.approx(expected, abs=1e-6)


def test_table_and_picture_are_in_the_folder(finished):
    _, folder = finished
    text = (folder / TABLE).read_text()
    assert (
        "| scenario | train | task | PF-MSMTrec | alone | FedAvg | pooled | best possible |" in text
    )
    assert text.count("\n| scenario ") == 1 + 4
    assert text.count("\n| mean | 48 ") == 2
    assert imread(folder / PICTURE).shape[1] > 1000
    notes = json.loads((folder / "summary.json").read_text())["notes"]
    assert any("comparison.png" in note for note in notes)


@pytest.mark.parametrize("more", [{}, {"compare": "true", "method": "local"}])
def test_others_leave_none(tmp_path, more):
    folder = train(PAPER, settings_of(tmp_path, rounds=1, **more))
    assert not (folder / TABLE).exists()
    rows = json.loads((folder / "clients.json").read_text())
    assert list(rows[0]) == ["scenario", "train", "ctr", "ctcvr"]


def test_it_is_made_of_the_sample_unless_told_otherwise():
    assert Settings().compares
    assert not Settings(data=ScenarioData(name="world")).compares
    assert Settings(data=ScenarioData(name="world"), compare=True).compares
    assert not Settings(compare=False).compares
    assert not Settings(method="fedavg", compare=True).compares


def test_a_round_that_is_not_evaluated_has_no_course(tmp_path):
    settings = settings_of(tmp_path, rounds=3, train__evaluate_every=2)
    run = FederatedRun(Experiment(settings).federation())
    result = followed(run, 2)
    course = result.course["test/personal_auc_ctr"]
    assert [math.isnan(values[0]) for values in course] == [True, False, False]
    expected, chosen = result.curve("test/personal_auc_ctr"), result.best_round
    found = of_scenarios(result, "personal", ["ctr"])["ctr"]
    assert sum(found) / 2 == pytest.approx(expected[chosen - 1])


def small_task(lengths):
    clients = [{"labels": torch.tensor([[0], [1]] * n, dtype=torch.uint8)} for n in lengths]
    data = SampleData.from_clients(clients)
    names = tuple(f"s{number}" for number in range(len(lengths)))
    schema = Schema(("ctr",), names, (3,), 0)
    truth = torch.rand(2 * sum(lengths), 1, dtype=torch.float64)
    return Task("small", schema, SplitSamples(data, data, data), truth)


def test_scenarios_are_drawn_by_size_where_sizes_differ():
    tests = {"one": {"ctr": [0.5, 0.6, 0.7]}}
    curves, first = panels(small_task([3, 1, 2]), tests, {"one": [0.5, math.nan, 0.7]})
    assert first.curves["one"].x == [2, 4, 6]
    assert [one.mean for one in first.curves["one"].y] == [0.6, 0.7, 0.5]
    assert first.scale != curves.scale  # AUC of a test and of validation
    assert list(curves.curves["one"].x) == [1, 3]
    _, first = panels(small_task([2, 2, 2]), tests, {})
    assert (first.curves["one"].x, first.x_label) == ([1, 2, 3], "scenario")


def test_an_auc_that_is_not_defined_is_in_no_mean():
    task = small_task([1, 1])
    rows = table(task, {"one": {"ctr": [math.nan, 0.75]}})
    assert rows[-1]["one"] == 0.75
    task.clients.test.samples["labels"][:2] = 1
    assert math.isnan(oracle(task)["ctr"][0])
