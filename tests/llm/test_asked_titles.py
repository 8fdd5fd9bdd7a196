"""Which items a batch of an encoder asks for: states, batches, what is found, the command."""

import json

import numpy as np
import pytest
import torch
from tests.llm.test_encoder import encoder
from tests.llm.tiny_encoder import rows

from coterie.core.cli.main import main
from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.asked_titles import Batch, batches, draw, guesses, text_states, titles_found
from coterie.llm.asked_titles import rows as tabulated
from coterie.llm.client import shuffled
from coterie.llm.data.client_data import build
from coterie.llm.settings import FederatedDataSettings, Settings, TrainSettings
from coterie.llm.trained_run import TrainedRun

KEY = Key.from_seed(5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
def test_states_are_those_of_whole_models(kind):
    made = encoder(kind, top=2, trained=True)
    distinct = list(dict.fromkeys(rows()))
    found = text_states(made)
    assert found.shape == (4, len(distinct), 8)
    for place, row in enumerate(distinct):
        ids = torch.tensor([row])
        out = made.model(input_ids=ids, output_hidden_states=True).hidden_states[1:]
        for layer, states in enumerate(out):
            assert torch.allclose(found[layer, place], states[0].mean(0), atol=1e-12)
    of_two = made.states_by_layer(torch.tensor([5, 0]))
    assert torch.allclose(of_two, found[:, [0, 0]], atol=1e-12)
    assert made.below == 2


def test_the_nearest_is_that_of_a_loop():
    made = encoder(top=3, trained=True)
    own = text_states(made)
    public = own + 0.5 * own.std() * KEY.fold("noise").normal(*own.shape, dtype=torch.float64)
    found = guesses(made, public)
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    for layer in range(4):
        table = [unit(row) for row in public[layer].numpy()]
        for text, state in enumerate(own[layer].numpy()):
            assert found[layer, text] == int(np.argmax([unit(state) @ row for row in table]))
    right = (found == torch.arange(own.shape[1])).double().mean()
    assert 0 < right < 1
    assert torch.equal(guesses(made, own), torch.arange(own.shape[1]).expand(4, -1))


def test_what_is_found_is_counted_batch_by_batch():
    guess = {4: torch.tensor([[0, 9, 2, 3, 4, 5, 6, 7, 8]] * 2), 1: torch.tensor([[1] * 9] * 2)}
    guess[4][1] = torch.arange(9)
    asked = [Batch(4, 2, torch.tensor([0, 1, 3, 4, 5, 8])), Batch(1, 1, torch.tensor([1, 5]))]
    found = titles_found(asked, guess, torch.tensor([0, 5, 9, 1, 1, 7, 0, 0, 8]))
    assert found.found == pytest.approx([(5 / 6 + 1 / 2) / 2, (1 + 1 / 2) / 2])
    # The six most popular are 2, 8, 5, 1, 3 and 4; the two are 2 and 8.
    assert found.trivial == pytest.approx((5 / 6 + 0) / 2)
    assert (found.titles, found.examples, found.batches) == (4, 1.5, 2)


def test_batches_are_those_of_training():
    how = FederatedDataSettings(clients=3)
    data = build(k_core(generate(), 5), how, KEY.fold("data"))
    settings = Settings(data=how, train=TrainSettings(batch_size=16))
    text_of = torch.arange(data.n_items) // 2
    train = list(data.clients.train)
    found = batches(train, text_of, [0, 2], settings, 60, KEY)
    for client in (0, 2):
        own = [one for one in found if one.client == client]
        parts = shuffled(train[client], settings, KEY.fold("client", client), 0)
        assert sum(one.examples for one in own) == 32  # whole batches, for 30
        for one, part in zip(own, parts, strict=False):
            items = {*part.target.tolist(), *part.history.values.tolist()}
            assert one.texts.tolist() == sorted({item // 2 for item in items})
    train[1] = train[1].take(torch.arange(0))
    with pytest.raises(UserError, match="client 1 has no training example"):
        batches(train, text_of, [1], settings, 64, KEY)
    assert {one.client for one in batches(train, text_of, [1, 2], settings, 64, KEY)} == {2}


def test_a_table_and_a_drawing(tmp_path):
    guess = {0: torch.tensor([[1, 0, 2, 3, 4, 5]])}
    reports = [
        titles_found([Batch(0, 1, texts)], guess, torch.ones(6))
        for texts in (torch.tensor([0, 2]), torch.tensor([3, 4]))
    ]
    (row,) = tabulated(reports)
    assert (row["layer"], row["found"]) == (1, 0.75)
    assert row["found_sd"] == pytest.approx(0.5 / 2**0.5)
    assert row["trivial_found"] == pytest.approx(0.25)
    assert draw([row], 2, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def command(capsys, *argv):
    assert main(["llm", "attack", *argv]) == 0
    return capsys.readouterr().out


def test_the_command_finds_all_titles_of_an_encoder(sample_encoder, capsys, tmp_path):
    how = ["--model.name", "encoder", "--model.path", sample_encoder, "--data.clients", "2"]
    more = ["--examples", "100", "--seeds", "2", "--run.out", str(tmp_path)]
    out = command(capsys, *more, *how, "--lora.top", "1")
    assert "With these settings no batch is seen" in out
    out = command(capsys, *more, *how, "--lora.top", "2")
    assert "The server of a split model gets h_k of a batch's titles" in " ".join(out.split())
    found = json.loads(command(capsys, *more, *how, "--lora.top", "3", "--json"))
    assert [row["layer"] for row in found] == [1, 2, 3, 4]
    assert all(row["found"] == 1.0 > row["trivial_found"] for row in found)
    assert (tmp_path / "pplr" / "attack" / "sample-encoder.png").is_file()
    assert main(["llm", "attack", *how, "--loss", "mse"]) == 2
    assert "--loss is of an attack that learns" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("split", [[], ["--split.k", "1"]])
def test_the_command_attacks_each_client_s_own_network(sample_encoder, capsys, tmp_path, split):
    how = ["--model.name", "encoder", "--model.path", sample_encoder, "--data.clients", "2", *split]
    how += ["--lora.top", "3", "--train.lr", "1", "--rounds", "1", "--method", "local"]
    out = ["--run.out", str(tmp_path), "--run.name", "run", "--logger.wandb", "off"]
    assert main(["train", "pplr", *how, *out]) == 0
    run = TrainedRun(tmp_path / "pplr" / "run")
    capsys.readouterr()
    where = ["--run", str(tmp_path / "pplr" / "run"), "--seeds", "1", "--json"]
    found = json.loads(command(capsys, *where))
    public = text_states(run.start())
    for client in (0, 1):
        one = json.loads(command(capsys, *where, "--client", str(client)))
        guess = {client: guesses(run.backbone(client), public)}
        settings, key = run.experiment.settings, Key.from_seed(0).fold("attack")
        train, text_of = run.experiment.clients.train, run.start().text_of
        asked = batches(train, text_of, [client], settings, 1000, key)
        expected = titles_found(asked, guess, torch.ones(public.shape[1])).found
        assert [row["found"] for row in one] == expected
    assert found[0]["found"] == 1.0  # below what is trained
    assert len(found) == 4
