"""Which items a batch of an encoder asks for: states, batches, what is found, the command."""

import json

import numpy as np
import pytest
import torch
from tests.llm.test_encoder import encoder
from tests.llm.tiny_encoder import folder, rows

from coterie.core.cli.main import main
from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.client import shuffled
from coterie.llm.data.client_data import build
from coterie.llm.settings import FederatedDataSettings, Settings, TrainSettings
from coterie.llm.which_items import Batch, batches, draw, text_states, which_items
from coterie.llm.which_items import rows as tabulated

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
    assert torch.equal(made.states_by_layer(torch.tensor([5, 0])), found[:, [0, 0]])
    assert made.below == 2


def test_the_nearest_is_that_of_a_loop():
    draws = [KEY.fold("states", n).normal(2, 9, 3, dtype=torch.float64) for n in range(3)]
    public, states = draws[0], {4: draws[0] + draws[1], 1: draws[0] + 0.9 * draws[2]}
    asked = [Batch(4, 2, torch.tensor([0, 3, 4, 5, 8])), Batch(1, 1, torch.tensor([2, 5]))]
    counts = torch.tensor([0, 5, 9, 1, 1, 7, 0, 0, 8])
    found = which_items(asked, states, public, counts)
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    for layer in range(2):
        table, shares = [unit(row) for row in public[layer].numpy()], []
        for one in asked:
            own = states[one.client][layer].numpy()
            hits = [int(np.argmax([unit(own[t]) @ row for row in table])) == t for t in one.texts]
            shares.append(sum(hits) / len(hits))
        assert found.found[layer] == pytest.approx(sum(shares) / 2)
    assert 0 < found.found[0] < 1
    # The five most popular are 2, 8, 5, 1 and 3; the two are 2 and 8.
    assert found.trivial == pytest.approx((3 / 5 + 1 / 2) / 2)
    assert (found.titles, found.examples, found.batches) == (3.5, 1.5, 2)


def test_batches_are_those_of_training():
    how = FederatedDataSettings(clients=3)
    data = build(k_core(generate(), 5), how, KEY.fold("data"))
    settings = Settings(data=how, train=TrainSettings(batch_size=16))
    text_of = torch.arange(data.n_items) // 2
    found = batches(data, text_of, [0, 2], settings, 64, KEY)
    for client in (0, 2):
        own = [one for one in found if one.client == client]
        parts = shuffled(data.clients.train[client], settings, KEY.fold("client", client), 0)
        assert sum(one.examples for one in own) == min(32, len(data.clients.train[client]))
        for one, part in zip(own, parts, strict=False):
            items = {*part.target.tolist(), *part.history.values.tolist()}
            assert one.texts.tolist() == sorted({item // 2 for item in items})
    data.clients.train[1] = data.clients.train[1].take(torch.arange(0))
    with pytest.raises(UserError, match="client 1 has no training example"):
        batches(data, text_of, [1], settings, 64, KEY)


def test_a_table_and_a_drawing(tmp_path):
    public = KEY.fold("p").normal(1, 6, 4)
    reports = [
        which_items([Batch(0, 1, texts)], {0: public[:, [1, 0, 2, 3, 4, 5]]}, public, torch.ones(6))
        for texts in (torch.tensor([0, 2]), torch.tensor([3, 4]))
    ]
    (row,) = tabulated(reports)
    assert (row["layer"], row["found"]) == (1, 0.75)
    assert row["found_sd"] == pytest.approx(0.5 / 2**0.5)
    assert row["trivial_found"] == pytest.approx(0.25)
    assert draw([row], 2, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("own_backbones")
def test_the_command_finds_titles_of_an_encoder(capsys, tmp_path):
    made = folder(tmp_path / "model", words=[f"genre{n}" for n in range(3)])
    how = ["--model.name", "encoder", "--model.path", str(made)]
    argv = ["llm", "attack", "--examples", "100", "--seeds", "2", "--run.out", str(tmp_path)]
    assert main([*argv, *how, "--lora.top", "1"]) == 0
    out = capsys.readouterr().out
    assert "With these settings no batch is seen" in out
    assert main([*argv, *how, "--lora.top", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["layer"] for row in found] == [1, 2, 3, 4]
    assert (tmp_path / "pplr" / "attack" / "sample-encoder.png").is_file()
    assert main(["llm", "attack", *how, "--loss", "mse"]) == 2
    assert "--loss is of an attack that learns" in capsys.readouterr().err
