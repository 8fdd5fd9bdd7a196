"""What a run says of clients that could not train, of long histories, and of no validation."""

import json
from dataclasses import replace

import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.llm.data.examples import Queries
from coterie.llm.experiment import Experiment

SMALL = ["--rounds=1", "--model.width=16", "--model.layers=1", "--pretrain.steps=2"]


def experiment(tmp_path, *flags):
    return Experiment(
        configure(find_paper("pplr"), [*SMALL, f"--run.out={tmp_path}", *flags]).settings
    )


def finished(found):
    module = FederatedRun(found.federation())
    while not module.finished:
        module.advance()
    return module


def without_training(found, client):
    """The same experiment, with a client that has users but no example."""
    clients = found.data.clients
    none = clients.train[client].take(torch.arange(0))
    train = [none if c == client else part for c, part in enumerate(clients.train)]
    found.__dict__["data"] = replace(found.data, clients=replace(clients, train=train))
    return found


def test_a_client_without_training_is_named(tmp_path):
    found = without_training(experiment(tmp_path), 3)
    assert found.notes(finished(found)) == [
        "nothing to train on: client 3; they receive and teach nobody"
    ]


@pytest.mark.parametrize("name", ["tiny-text", "recformer"])
def test_cut_histories_are_counted_and_said_once(tmp_path, capsys, name):
    flags = [f"--run.out={tmp_path}", "--logger.wandb=off", "--run.progress=false"]
    flags += [f"--model.name={name}", "--model.context=60", "--generation.max_new_tokens=24"]
    assert main(["train", "pplr", *SMALL, *flags]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note: ")]
    assert len(told) == 1
    assert "longer than 'model.context' 60" in told[0]
    (summary,) = tmp_path.glob("pplr/*/summary.json")
    (note,) = json.loads(summary.read_text())["notes"]
    count = int(note.split()[0].replace(",", ""))
    found = experiment(tmp_path, *flags)
    assert count >= sum(map(len, found.data.clients.test))  # the test alone reads them all


def test_nothing_is_said_where_nothing_is_amiss(tmp_path):
    found = experiment(tmp_path)
    assert found.notes(finished(found)) == []


def test_a_best_round_needs_somebody_to_validate(tmp_path):
    found = experiment(tmp_path)
    clients = found.data.clients
    nobody: list[Queries] = [part.take(torch.arange(0)) for part in clients.valid]
    found.__dict__["data"] = replace(found.data, clients=replace(clients, valid=nobody))
    with pytest.raises(UserError, match="no client has a user to validate on"):
        found.federation()
