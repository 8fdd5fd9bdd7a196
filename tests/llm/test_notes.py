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
from coterie.llm.rules import title_rule

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
    told = found.notes(finished(found))
    assert told[0] == "nothing to train on: client 3; they receive and teach nobody"
    assert len(told) == 2
    assert "without any training" in told[1]


def test_a_run_says_when_words_alone_find_more(tmp_path):
    found = experiment(tmp_path)
    rule = title_rule(found.data)
    recall = torch.cat([part["recall@10"] for part in rule.test]).mean()
    module = finished(found)
    (told,) = found.notes(module)
    assert told.startswith("on validation, genres and popularity alone")
    assert f"(recall@10 {recall:.4f} on the test): --variant best" in told
    told_elsewhere = "'rounds' 1 had no effect on the method fedmf: say --fedmf.rounds"
    for flags, notes in (
        (["--model.expert=titles"], []),
        (["--method=fedmf", "--fedmf.rounds=1"], [told_elsewhere]),
    ):
        other = experiment(tmp_path, *flags)
        assert other.notes(finished(other)) == notes
    module.history[0]["eval/recall@10"] = 0.9
    assert found.notes(module) == []


@pytest.mark.long
def test_variant_best_beats_the_paper_s_method_and_the_rule_on_the_sample(tmp_path):
    short = ["--rounds=1", "--pretrain.steps=50", "--model.width=32"]
    best, plain = (
        Experiment(configure(find_paper("pplr"), [*flags, f"--run.out={tmp_path}"]).settings)
        for flags in (["--variant=best", *short], short)
    )
    recalls = [finished(each).results["test/recall@10"] for each in (best, plain)]
    rule = torch.cat([part["recall@10"] for part in title_rule(plain.data).test]).mean()
    assert recalls[0] > float(rule) > 0.19
    assert recalls[0] > recalls[1] + 0.05


@pytest.mark.parametrize("name", ["tiny-text", "recformer"])
def test_cut_histories_are_counted_and_said_once(tmp_path, capsys, name):
    flags = [f"--run.out={tmp_path}", "--logger.wandb=off", "--run.progress=false"]
    flags += ["--data.shots=40", "--data.valid_users=2", "--generation.beams=2"]
    flags += ["--generation.candidates=2", "--data.public=0.9", "--data.clients=2"]
    flags += [f"--model.name={name}", "--model.context=60", "--generation.max_new_tokens=24"]
    assert main(["train", "pplr", *SMALL, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith("Note: ") and "longer" in line]
    assert len(told) == 1
    assert "longer than 'model.context' 60" in told[0]
    (summary,) = tmp_path.glob("pplr/*/summary.json")
    note = json.loads(summary.read_text())["notes"][0]
    count = int(note.split()[0].replace(",", ""))
    found = experiment(tmp_path, *flags)
    assert count >= sum(map(len, found.data.clients.test))  # the test alone reads them all


def test_nothing_is_said_where_nothing_is_amiss(tmp_path):
    found = experiment(tmp_path, "--model.expert=both")
    assert found.notes(finished(found)) == []


def test_a_best_round_needs_somebody_to_validate(tmp_path):
    found = experiment(tmp_path)
    clients = found.data.clients
    nobody: list[Queries] = [part.take(torch.arange(0)) for part in clients.valid]
    found.__dict__["data"] = replace(found.data, clients=replace(clients, valid=nobody))
    with pytest.raises(UserError, match="no client has a user to validate on"):
        found.federation()
