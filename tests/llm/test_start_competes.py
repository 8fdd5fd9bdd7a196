"""The backbone as it is competes with the rounds: training that only hurts is not served."""

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.federation.selection import BestRound, best_of, untrained
from coterie.core.metrics.monitor import Monitor, of_start
from coterie.core.registry.papers import find_paper
from coterie.core.run.dashboard import best_rounds
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tables.result import RunResult
from coterie.llm.experiment import Experiment
from coterie.llm.tables.study import train

FLAGS = ["--rounds", "6", "--data.clients", "3", "--data.shots", "90", "--logger.wandb", "off"]
FLAGS += ["--model.width", "16", "--model.layers", "1", "--patience", "2"]
HURTS = ["--train.lr", "3.0"]


def settings(tmp_path, *more):
    words = [*FLAGS, "--run.out", str(tmp_path), *more]
    return configure(find_paper("pplr"), words).settings


def finished(chosen):
    experiment = Experiment(chosen)
    run = FederatedRun(experiment.federation())
    start = run.server_state.rows
    while not run.finished:
        run.advance()
    return experiment, run, start


@pytest.mark.parametrize("method", ["pplr", "fedavg", "local", "central", "fedamp", "fedavg-head"])
def test_what_training_spoils_is_not_served(tmp_path, method):
    experiment, run, start = finished(settings(tmp_path, "--method", method, *HURTS))
    state, first = run.server_state, run.history[0]
    assert state.chosen == BestRound(0, first["start/recall@10"])
    assert state.chosen.score > max(row["eval/recall@10"] for row in run.history)
    assert run.round == 2  # patience
    assert torch.equal(state.best, start)
    assert run.results["test/best_round"] == 0
    # What is tested and served is the start.
    client = run.federation.client
    data = experiment.clients[1]
    client.load(client.start)
    expected = client.backbone.scores(data.test.history)
    served = run.federation.server.served(state, 1)
    row = client.head.joined(served, run.store.take(torch.tensor([1])).best_head)
    assert torch.equal(client.score(1, row, data.test.history), expected)


def test_a_round_that_is_better_is_kept(tmp_path):
    _, run, start = finished(settings(tmp_path, "--train.lr", "0.003"))
    best = run.server_state.chosen
    assert best.round > 0
    assert best == best_of(run.history, Monitor("eval/recall@10"))
    assert best.score > run.history[0]["start/recall@10"]
    assert not torch.equal(run.server_state.best, start)


def test_a_run_says_so_and_tables_read_it(tmp_path, capsys):
    words = [*FLAGS, *HURTS, "--run.out", str(tmp_path), "--run.name", "a"]
    assert main(["train", "pplr", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no round was better on validation than what it started from" in said
    result = train(settings(tmp_path, *HURTS))
    assert result.metrics["best_round"] == 0
    start = result.curve("start/recall@10")[0]
    assert result.metrics["valid/recall@10"] == start
    shares = result.clients["valid/recall@10"]
    assert len(shares) == 3
    assert shares == result.course["start/recall@10"][0]
    assert shares != result.course["eval/recall@10"][0]


MONITOR = Monitor("eval/auc")


@pytest.mark.parametrize(("start", "best"), [(0.8, 0), (0.7, 0), (0.6, 2), (None, 2)])
def test_tables_and_pictures_know_round_0(start, best):
    """A tie is the start's."""
    first = {} if start is None else {"start/auc": start}
    history = [{"eval/auc": 0.5, **first}, {"eval/auc": 0.7}, {"eval/auc": 0.6}]
    assert best_of(history, MONITOR).round == best
    result = RunResult(chosen_by="eval/auc")
    for row in history:
        result.note(row)
    assert result.best_round == best
    assert result.best("eval/auc") == (start if best == 0 else 0.7)
    table = {
        "block": torch.zeros(3).numpy(),
        "eval/auc": torch.tensor([0.5, 0.7, 0.6]).numpy(),
        "start/auc": torch.tensor([start or torch.nan, torch.nan, torch.nan]).numpy(),
    }
    assert best_rounds(table, MONITOR) == ([] if best == 0 else [1])


def test_names_and_sentences():
    assert of_start("eval/auc") == "start/auc"
    assert untrained({"test/best_round": 2.0}) == []
    [line] = untrained({"test/block1/best_round": 0.0, "test/block2/best_round": 3.0})
    assert line.startswith("no round of block 1 was better")
