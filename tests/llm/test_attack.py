"""The attack on hidden states: what is collected, what is learnt, what is reported."""

import json
from functools import reduce

import pytest
import torch
from tests.llm.every_backbone import KINDS, TITLES, make
from tests.llm.organisations import examples
from torch.nn.functional import mse_loss

from coterie.core.cli.main import main
from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.attack import (
    Attacker,
    HiddenStates,
    attack,
    draw,
    hidden_states,
    judge,
    rows,
    secret,
    train,
    users_known,
    victims,
)
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.data.client_data import build
from coterie.llm.data.examples import Examples
from coterie.llm.settings import FederatedDataSettings

KEY = Key.from_seed(3)
QUICK = Attacker(steps=300, lr=3e-3)


def tokens(n, vocabulary=20):
    return KEY.fold("tokens").integers(vocabulary, torch.arange(n))


def random_states(token, table, noise):
    """Two layers: the embedding turned and with noise, and noise alone."""
    turn = torch.linalg.qr(KEY.fold("turn").normal(table.shape[1], table.shape[1]))[0]
    turned = 5 * table[token] @ turn + noise * KEY.fold("noise").normal(len(token), table.shape[1])
    alone = KEY.fold("alone").normal(len(token), table.shape[1])
    return HiddenStates([turned, alone], token, torch.arange(len(token)) // 10)


def test_judge_equals_a_plain_loop():
    table, guess = KEY.fold("t").normal(9, 4), KEY.fold("g").normal(30, 4)
    true = tokens(30, 9)
    cosine, hits = 0.0, 0
    for row, token in zip(guess.double().tolist(), true.tolist(), strict=True):
        found = []
        for other in table.double().tolist():
            dot = sum(a * b for a, b in zip(row, other, strict=True))
            length = sum(a * a for a in row) ** 0.5 * sum(b * b for b in other) ** 0.5
            found.append(dot / length)
        cosine += found[token] / 30
        hits += found.index(max(found)) == token
    judged = judge(guess, true, table)
    assert judged.cosine == pytest.approx(cosine, abs=1e-6)
    assert judged.recovery == hits / 30
    exact = judge(table[true], true, table)
    assert (exact.cosine, exact.recovery) == (pytest.approx(1.0), 1.0)


def test_what_is_there_is_found_and_what_is_not_is_not():
    table, token = KEY.fold("table").normal(20, 16), tokens(3000)
    states, user = random_states(token, table, noise=0.1), torch.arange(3000) // 100
    report = attack(states, user, table, QUICK, KEY)
    turned, alone = report.learnt
    assert turned.recovery > 0.99
    assert turned.cosine > 0.95
    # A turned space is of no use to someone who only looks for the nearest embedding.
    assert report.nearest[0].recovery < 0.3
    # Noise tells no more than the most frequent token does, chance being 1 / 20.
    assert alone.recovery < 0.1
    assert report.trivial.recovery < 0.1
    assert alone.cosine == pytest.approx(report.trivial.cosine, abs=0.1)
    assert report.users == (24, 6)
    assert report.tokens == (2400, 600)


def test_hidden_states_that_are_the_embeddings_need_no_training():
    table, token = KEY.fold("table").normal(20, 16), tokens(400)
    states = HiddenStates([table[token] * 7], token, torch.arange(400) // 10)
    report = attack(states, torch.arange(400) // 40, table, Attacker(steps=1), KEY)
    assert report.nearest[0].recovery == 1.0
    assert report.nearest[0].cosine == pytest.approx(1.0)


def test_the_trivial_guess_is_the_mean_and_the_most_frequent_token():
    table = torch.eye(4)
    token = torch.tensor([2, 2, 1, 0] * 50)
    user = torch.arange(200) // 20
    report = attack(HiddenStates([table[token]], token, user), user, table, Attacker(1), KEY)
    assert report.trivial.recovery == 0.5
    mean = torch.tensor([0.25, 0.25, 0.5, 0])
    cosine = float((mean[token] / mean.norm()).double().mean())
    assert report.trivial.cosine == pytest.approx(cosine, abs=1e-6)


def test_users_are_either_learnt_from_or_attacked():
    user = torch.tensor([4] * 3 + [9] * 5 + list(range(20, 28)))
    known = users_known(user, 0.8, KEY)
    assert not set(user[known].tolist()) & set(user[~known].tolist())
    assert user[known].unique().numel() == 8
    assert torch.equal(known, users_known(user, 0.8, KEY))
    assert not torch.equal(known, users_known(user, 0.8, Key.from_seed(4)))
    two = users_known(torch.tensor([1, 2, 2]), 0.99, KEY)
    assert 0 < two.sum() < 3
    with pytest.raises(UserError, match="1 users to attack: at least 2"):
        users_known(torch.tensor([5, 5]), 0.8, KEY)


def test_one_seed_gives_one_result_and_leaves_the_global_generator_alone():
    table, token = KEY.fold("table").normal(20, 8), tokens(500)
    states, user = random_states(token, table, 1.0), torch.arange(500) // 50
    state = torch.random.get_rng_state()
    first, again = (attack(states, user, table, Attacker(20), KEY) for _ in range(2))
    assert first == again
    assert first != attack(states, user, table, Attacker(20), Key.from_seed(4))
    assert torch.equal(state, torch.random.get_rng_state())


def test_mse_is_what_it_trains():
    hidden = KEY.fold("h").normal(300, 6)
    target = hidden @ KEY.fold("map").normal(6, 6)
    settings = {"steps": 200, "batch": 300, "lr": 1e-2}
    by_mse = train(hidden, target, Attacker(loss="mse", **settings), KEY)
    by_cosine = train(hidden, 100 * target, Attacker(loss="cosine", **settings), KEY)
    zero = float(mse_loss(torch.zeros_like(target), target))
    assert float(mse_loss(by_mse(hidden), target).detach()) < 0.1 * zero
    # The cosine does not see the length of the embeddings.
    assert float(by_cosine(hidden).detach().norm(dim=1).mean()) < 20


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_each_sequence_alone(kind):
    model, data = make(kind), examples(6, seed=4)
    together = hidden_states(model, data)
    alone = [hidden_states(model, data.take(torch.tensor([i]))) for i in range(6)]
    put = reduce(tree.concatenate, alone)
    assert together.sequence.bincount().tolist() == [len(one.token) for one in alone]
    assert torch.equal(together.token, put.token)
    assert [layer.shape for layer in together.layers] == [(len(put.token), model.hidden)] * 3
    for one, other in zip(together.layers, put.layers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    # Longer histories come with more tokens, padding with none.
    lengths = torch.bincount(together.sequence)
    assert lengths.argmax() in (data.history.lengths == data.history.lengths.max()).nonzero()


def test_states_are_those_that_transformers_gives():
    model = make("tiny-item")
    hooks = [len(module._forward_hooks) for module in model.modules()]
    history, target = Ragged.from_lists([[0, 3, 5]]), torch.tensor([7])
    found = hidden_states(model, Examples(history, target))
    assert hooks == [len(module._forward_hooks) for module in model.modules()]
    start = len(TITLES)
    assert found.token.tolist() == [start, 0, 3, 5, 7]
    network = model.model
    with torch.no_grad():
        out = network(
            input_ids=found.token[None], output_hidden_states=True, use_cache=False
        ).hidden_states
    for own, other in zip(found.layers[:-1], out[1:-1], strict=True):
        torch.testing.assert_close(own, other[0])
    # The last one of transformers has gone through the norm.
    torch.testing.assert_close(network.model.norm(found.layers[-1]), out[-1][0])


def test_tokens_of_every_sequence_are_no_secret():
    token, sequence = torch.tensor([9, 1, 2, 9, 2, 9, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    kept = secret(HiddenStates([torch.arange(8.0)[:, None]], token, sequence))
    assert kept.token.tolist() == [1, 2, 2, 1, 1]
    assert kept.layers[0].flatten().tolist() == [1, 2, 4, 6, 7]
    with pytest.raises(UserError, match="nothing to find out"):
        secret(HiddenStates([torch.zeros(2, 1)], torch.tensor([9, 9]), torch.tensor([0, 1])))


def test_tokens_are_those_of_the_users_they_are_said_to_be_of():
    data = build(k_core(generate(), 5), FederatedDataSettings(clients=3), KEY)
    model = TinyItem(data.n_items, width=8, layers=1, heads=2, context=4, key=KEY)
    states, user = victims(data, lambda client: model, [2, 0], 4, 150, KEY)
    assert set(data.client_of[user].tolist()) == {0, 2}
    had = data.split.train.tolists()
    pairs = zip(states.token.tolist(), user.tolist(), strict=True)
    assert all(item in had[owner] for item, owner in pairs)


def test_rows_are_means_over_seeds(tmp_path):
    table, token = KEY.fold("table").normal(20, 8), tokens(300)
    states, user = random_states(token, table, 1.0), torch.arange(300) // 30
    reports = [attack(states, user, table, Attacker(5), Key.from_seed(s)) for s in (0, 1)]
    found = rows(reports)
    assert [row["layer"] for row in found] == [1, 2]
    a, b = (report.learnt[1].recovery for report in reports)
    assert found[1]["recovery"] == pytest.approx((a + b) / 2)
    assert found[1]["recovery_sd"] == pytest.approx(abs(a - b) / 2**0.5)
    assert draw(found, 2, tmp_path / "a" / "b.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_attacks_a_backbone(capsys, tmp_path):
    argv = ["llm", "attack", "--steps", "30", "--seeds", "2", "--examples", "200", "--json"]
    quick = ["--pretrain.steps", "40", "--run.out", str(tmp_path)]
    assert main([*argv, *quick]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["layer"] for row in found] == list(range(1, len(found) + 1))
    assert all(row["recovery"] > 5 * row["trivial_recovery"] for row in found)
    assert found[0]["seeds"] == 2
    (png,) = tmp_path.rglob("*.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert main([*argv, *quick]) == 0
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.usefixtures("own_backbones")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--run nowhere --seed 1", "--seed beside --run: a run has settings of its own"),
        ("--client 1", "--client needs --run"),
        ("--run nowhere", "there is no run nowhere"),
        ("--steps 0", "expected a whole number above 0, not '0'"),
        ("--loss mae", "argument --loss: invalid choice: 'mae'"),
        ("--sedes 3", "unknown setting '--sedes': did you mean '--seed'?"),
    ],
)
def test_mistakes_are_one_line(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["llm", "attack", *argv.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())
