"""A run of PAGE from the command line: its folder, and the commands that take it."""

import json

import pytest
import torch
import yaml
from tests.page.official_layouts import cifar_fields, write_cifar

from coterie.core.cli.main import main
from coterie.core.run.driver import FederatedRun
from coterie.page.experiment import ACCURACIES, Experiment
from coterie.page.published import departures
from coterie.page.readings import idle, resolve
from coterie.page.settings import (
    AgentOptions,
    GameSettings,
    ModelSettings,
    Settings,
    TaskSettings,
    TrainSettings,
)

SMALL = ["--data.clients", "4", "--train.epochs", "2", "--train.batch_size", "30"]


def train(out, *flags, method="page"):
    words = ["train", "page", "--method", method, *SMALL, *flags]
    quiet = ["--run.out", str(out), "--run.progress", "false", "--logger.wandb", "off"]
    status = main([*words, *quiet])
    if status:
        return status
    [folder] = (path for path in out.glob("page/*") if f"-{method}-" in path.name)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run"), "--rounds", "3")


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def numbers_in(value):
    """Every number below a JSON value, by the last key."""
    for name, child in value.items():
        if isinstance(child, dict):
            yield from numbers_in(child)
        elif isinstance(child, float):
            yield name, child


def test_the_folder_says_what_was_run(run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["method"] == "page"
    assert config["game"]["follower"] == "best-response"  # the reading's choices are filled in
    assert config["game"]["utility"] == "bounded"
    assert config["data"]["clients"] == 4
    found = dict(numbers_in(summary_of(run)))
    for name in ACCURACIES:
        assert 0 < found[f"test/{name}"] <= 1
        assert 0 < found[f"last/{name}"] <= 1
    rows = json.loads((run / "clients.json").read_text())
    assert [row["client"] for row in rows] == [0, 1, 2, 3]
    mean = sum(row["personal_accuracy"] for row in rows) / 4
    assert mean == pytest.approx(found["last/personal_accuracy"])
    assert (run / "curves.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": TaskSettings(name="synthetic", clients=5)}, ["5 clients (100)"]),
        ({"data": TaskSettings(feature_skew=2.0)}, ["data.feature_skew 2.0 (1.0)"]),
        (
            {
                "data": TaskSettings(name="cifar-100", samples=9, partition="shards"),
                "model": ModelSettings("small-cnn"),
            },
            [
                "network small-cnn (resnet18)",
                "at most 9 samples (all)",
                "data.partition shards (dirichlet)",
            ],
        ),
    ],
)
def test_the_papers_number_stands_beside_the_papers_setup_only(changes, says):
    assert departures(Settings(**changes)) == says
    assert Experiment(Settings(**changes)).reference() == {}
    usual = Experiment(Settings(model=ModelSettings("softmax"), data=TaskSettings(clients=100)))
    assert usual.reference()["test/server_accuracy"] == 0.9267


def test_evaluate_measures_the_last_model_again(run, capsys):
    assert main(["evaluate", "--run", str(run), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    found = dict(numbers_in(summary_of(run)))
    for name in ACCURACIES:
        assert measured[f"test/{name}"] == pytest.approx(found[f"last/{name}"], rel=1e-6)


def test_there_is_nothing_to_recommend(run, capsys):
    assert main(["recommend", "--run", str(run), "--user", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "classifies samples: there are no items to recommend" in said


def test_there_are_no_items_to_attack(run, capsys):
    assert main(["privacy", "page", "--attack", str(run)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_privacy_table_has_every_field_of_a_move(capsys):
    assert main(["privacy", "page", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    moves = {row["field"]: row for row in rows if row["message"] == "Move"}
    assert set(moves) == {"change", "samples", "loss", "local_loss", "lr", "epochs", "diverged"}
    assert moves["samples"]["depends on"] == "-"
    assert all("agents" in row["depends on"] for n, row in moves.items() if n != "samples")
    assert main(["privacy", "page"]) == 0
    assert "What crosses the boundary in page" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_what_it_is_compared_with_runs_by_the_same_command(tmp_path, method):
    found = dict(numbers_in(summary_of(train(tmp_path, "--rounds", "2", method=method))))
    assert 0 < found["test/server_accuracy"] < 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--game.reward_ratio", "10"], "global:local"),
        (["--game.lr_min", "0.5"], "'game.lr_min' 0.5 is above the most"),
        (["--game.epochs_min", "7"], "'game.epochs_min' 7 is above 'train.epochs' 2"),
        (["--data.name", "syntetic"], "synthetic"),
        (["--data.clients", "0"], "data.clients"),
        (["--reading", "releasd"], "released"),
        (["--train.participation", "0"], "participation"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, capsys, flags, says):
    assert train(tmp_path, *flags) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said
    assert not list(tmp_path.glob("page/*"))


def test_a_method_without_a_game_takes_any_learning_rate(tmp_path):
    lowest = ("--train.lr", "1e-5", "--rounds", "1")  # below game.lr_min
    assert summary_of(train(tmp_path, *lowest, method="fedavg"))["rounds"] == 1
    assert train(tmp_path, *lowest, "--run.name", "page") == 2
    assert summary_of(train(tmp_path, *lowest, "--game.tune_lr", "false"))["rounds"] == 1


def test_a_server_without_validation_samples_is_refused(tmp_path, capsys, monkeypatch):
    """Four pictures leave it none; the methods without a game need none."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    train_set, test_set = cifar_fields(600, 0), cifar_fields(50, 1)
    files = tmp_path / "data" / "cifar-100" / "cifar-100-python"
    write_cifar(files, train=train_set, test=test_set)
    few = ("--data.name", "cifar-100", "--data.root", str(tmp_path / "data"), "--data.samples", "4")
    few += ("--data.clients", "2", "--rounds", "1", "--model.name", "small-cnn")
    assert train(tmp_path, *few) == 2
    assert "raise data.samples" in capsys.readouterr().err
    assert not list(tmp_path.glob("page/*"))
    switches = [f"--game.tune_{name}=false" for name in ("lr", "epochs", "p")]
    assert summary_of(train(tmp_path, *few, *switches))["rounds"] == 1


def test_what_has_no_effect_in_a_game_is_named():
    def found(**changes):
        return idle(resolve(Settings(**changes)))

    assert found() == found(reading="literal") == found(reading="released") == []
    assert found(train=TrainSettings(weighting="equal")) == ["train.weighting"]
    learnt = GameSettings(follower="ddpg", steps=5)
    assert found(game=learnt, server_agent=AgentOptions(tau=0.1)) == ["game.steps"]
    assert found(server_agent=AgentOptions(tau=0.1)) == ["server_agent.tau"]
    alone = GameSettings(tune_lr=False, tune_epochs=False, epochs_min=9)
    assert found(game=alone, client_agent=AgentOptions(tau=0.1)) == [
        "client_agent.tau",
        "game.epochs_min",
    ]
    assert found(game=GameSettings(tune_p=False, order="before")) == ["game.order"]
    assert found(reading="released", game=GameSettings(patience=5)) == ["game.patience"]


def test_the_reported_test_is_of_the_round_that_validation_chose():
    settings = Settings(
        rounds=6, data=TaskSettings(clients=4), train=TrainSettings(epochs=1, batch_size=50)
    )
    experiment = Experiment(settings)
    module = FederatedRun(experiment.federation())
    while not module.finished:
        module.advance()
    found = experiment.final_metrics(module)
    scores = [row["eval/accuracy"] for row in module.history]
    best = scores.index(max(scores))
    assert found["test/best_round"] == best + 1
    for name in ACCURACIES:
        assert found[f"test/{name}"] == module.history[best][f"test/{name}"]
        assert found[f"last/{name}"] == module.history[-1][f"test/{name}"]


def test_the_data_are_described_and_drawn_from_the_seed_alone():
    one, two, other = (
        Experiment(Settings(seed=seed, data=TaskSettings(clients=3))) for seed in (0, 0, 1)
    )
    totals = one.describe_data()[0]
    assert totals == {"who": "3 clients", "train": 630, "valid": 135, "test": 270}
    x = [e.task.clients.train.samples["x"] for e in (one, two, other)]
    assert x[0].equal(x[1])
    assert not x[0].equal(x[2])


def test_a_run_that_accepted_no_update_has_no_result(tmp_path, capsys):
    diverging = ("--train.lr", "1e30", "--rounds", "2", "--data.clients", "3")
    assert train(tmp_path, *diverging, method="fedavg") == 2
    assert "nobody's answer to 'update' counts" in capsys.readouterr().err
    assert not list(tmp_path.glob("**/summary.json"))


def test_a_game_in_which_all_training_diverges_ends_in_one_line(tmp_path, capsys):
    diverging = ("--train.lr", "1e15", "--train.clip", "null", "--train.batch_size", "20")
    few = ("--data.clients", "5", "--train.epochs", "1", "--rounds", "3")
    assert train(tmp_path, *diverging, *few) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("coterie: error: no client's update was accepted in any round")


def test_with_few_clients_a_round_the_mean_is_over_all_clients(tmp_path):
    """The others have the server's model, so that no early round is best by its few clients."""
    train_few = TrainSettings(epochs=1, batch_size=50, participation=0.05)
    settings = Settings(method="fedavg", rounds=4, data=TaskSettings(clients=20), train=train_few)
    module = FederatedRun(Experiment(settings).federation())
    while not module.finished:
        module.advance()
        ids, own = module.journal.clients["test/personal_accuracy"]
        _, given = module.journal.clients["test/global_accuracy"]
        assert ids.tolist() == list(range(20))
        assert not own.isnan().any()
        trained = module.store.take(ids).rounds > 0
        assert 1 <= int(trained.sum()) <= module.round
        assert torch.equal(own[~trained], given[~trained])
