"""A round run again is the round that was trained, as its client saw it."""

import functools
import json
import math
import shutil

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from safetensors.torch import load_file

import coterie
from coterie.continual.client import ContinualClient
from coterie.continual.messages import ItemUpdate
from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.run.leaf_facts import changes_of, facts_of
from coterie.core.run.replay import replay
from coterie.core.tensors import tree
from coterie.core.tensors.rows import FactoredRows
from coterie.core.wire.codec import tensors_of

CLIP = 0.5
SHORT = {
    "preset": "smoke",
    "logger": {"wandb": "off", "transcript": True},
    "quiet": True,
    "privacy": {"clip": CLIP},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and what its client half was given and gave in every update as it was trained."""
    heard, update = [], ContinualClient.update

    @functools.wraps(update)
    def listened(self, down, mine, data, key):
        up, new = update(self, down, mine, data, key)
        heard.append((down, tree.clone(mine), data.ids.clone(), up, tree.clone(new)))
        return up, new

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContinualClient, "update", listened)
        out = tmp_path_factory.mktemp("replay")
        folder = coterie.train("f3crec", out=out, name="one", **SHORT).folder
    return folder, heard


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the run that a test may change."""
    copy = tmp_path / "f3crec" / "one"
    shutil.copytree(trained[0], copy)
    return copy


def bits(message):
    return {
        name: tensor.clone() for name, tensor in tensors_of({"x": tree.to_plain(message)}).items()
    }


def same(one, other):
    one, other = bits(one), bits(other)
    assert one
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def rounds_of(heard):
    """The updates of every round: a round begins where the number in its message is another."""
    found, last = [], None
    for entry in heard:
        when = (entry[0].block, entry[0].round)
        if when != last:
            found.append([])
        found[-1].append(entry)
        last = when
    return found


@pytest.mark.parametrize("round_", [1, 4])
def test_the_round_is_that_of_the_training(trained, round_):
    folder, heard = trained
    entries = rounds_of(heard)[round_ - 1]
    for place, number in ((0, 0), (-1, -1)):  # of the first and the last chunk
        down, mine, ids, up, new = entries[place]
        client = int(ids[number])
        row = torch.tensor([range(len(ids))[number]])
        found = replay(folder, round_, client)
        [turn] = [turn for turn in found.turns if turn.step == "update"]
        assert same(turn.received, down)
        assert same(turn.before, tree.as_one(tree.take(mine, row)))
        assert same(turn.made, tree.as_one(tree.take(up, row)))
        assert same(turn.after, tree.as_one(tree.take(new, row)))
        assert same(found.received["update"], down)
        assert found.turns[0].step == "update" or found.turns[0].when[1] == 0
        assert found.proof == "transcript"
        assert found.compared > 5
        dense = turn.made.items.dense()[0]
        norm = float(dense.double().norm())
        clipped = dense * min(1.0, CLIP / norm)
        assert norm > CLIP or round_ > 1
        assert torch.allclose(found.sent["update"].items.dense()[0], clipped, atol=1e-6)


def test_the_clients_number_of_crossings_is_that_of_the_file(trained):
    folder, heard = trained
    client = int(rounds_of(heard)[3][0][2][0])
    lines = [json.loads(line) for line in (folder / "transcript.jsonl").open()]
    rows = (folder / "metrics.csv").read_text().splitlines()[1:5]
    block = int(rows[3].split(",")[1])
    within = sum(row.split(",")[1] == str(block) for row in rows)
    wanted = {within, 0} if within == 1 else {within}
    count = sum(line["block"] == block and line["round"] in wanted for line in lines)
    assert replay(folder, 4, client).compared == count


def client_of(trained, round_):
    return int(rounds_of(trained[1])[round_ - 1][0][2][0])


def tampered(folder, change):
    """Change a line of the update in round 4."""
    path = folder / "transcript.jsonl"
    lines = [json.loads(line) for line in path.open()]
    last = max(
        place
        for place, line in enumerate(lines)
        if (line["block"], line["step"], line["direction"]) == (1, "update", "up")
    )
    change(lines, last)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines, at: lines[at].update(hash="0" * 64), "another hash at update, up, field"),
        (lambda lines, at: lines[at].update(bytes=1), "another bytes at update, up"),
        (lambda lines, at: lines.pop(at), "another"),
        (lambda lines, at: lines.insert(at, lines[at]), "another"),
    ],
)
def test_a_transcript_that_was_changed_is_refused(trained, folder, change, words):
    tampered(folder, change)
    with pytest.raises(UserError, match=rf"not the round that was trained.*{words}"):
        replay(folder, 4, client_of(trained, 4))


def test_a_line_less_or_more_at_the_end_is_refused(trained, folder):
    path, text = folder / "transcript.jsonl", (folder / "transcript.jsonl").read_text()
    last = len((folder / "metrics.csv").read_text().splitlines()) - 1
    client = client_of(trained, last)
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match="has no line for"):
        replay(folder, last, client)
    path.write_text(text + lines[-1])
    with pytest.raises(UserError, match="has a line more"):
        replay(folder, last, client)
    path.write_text(text + "{")
    with pytest.raises(UserError, match="damaged"):
        replay(folder, last, client)


def test_other_settings_are_refused(trained, folder):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(UserError, match="another 'seed'"):
        replay(folder, 4, client_of(trained, 4))


def test_without_a_transcript_numbers_are_compared(trained, folder):
    (folder / "transcript.jsonl").unlink()
    found = replay(folder, 2, client_of(trained, 2))
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    row = dict(zip(header.split(","), rows[1].split(","), strict=True))
    assert found.proof == "metrics"
    assert found.compared >= 4
    assert float(row["fed/loss"]) == found.numbers["fed/loss"]
    changed = rows[1].replace(row["fed/loss"], "0.5")
    (folder / "metrics.csv").write_text("\n".join([header, rows[0], changed, *rows[2:]]) + "\n")
    with pytest.raises(UserError, match=r"fed/loss is .* and was 0\.5"):
        replay(folder, 2, client_of(trained, 2))


def test_from_a_checkpoint_it_is_the_same(trained, folder):
    last = len((folder / "metrics.csv").read_text().splitlines()) - 1
    client = client_of(trained, last)
    whole = replay(folder, last, client)
    shutil.rmtree(folder / "checkpoints")
    alone = replay(folder, last, client)
    assert same(whole.after, alone.after)
    assert alone.began == 0
    assert whole.document()["steps"] == alone.document()["steps"]


def test_what_cannot_be_shown_is_said_in_one_line(trained, folder):
    def refused(round_, client):
        with pytest.raises(UserError) as caught:
            replay(folder, round_, client)
        return str(caught.value)

    assert "has no round 99: its rounds are 1 to 8" in refused(99, 0)
    assert "has no round 0" in refused(0, 0)
    assert "there is no client 100000: they are 0 to" in refused(1, 100_000)
    assert "there is no client -1" in refused(1, -1)
    heard = [{int(c) for one in entries for c in one[2]} for entries in rounds_of(trained[1])]
    absent = min(client for client in heard[0] if client not in heard[7])
    assert f"client {absent} took no part in round 8: " in refused(8, absent)
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("name: in-process", "name: flower"))
    assert "trained with engine.name flower" in refused(1, 0)


def test_a_block_that_a_callback_ended_is_ended_again(tmp_path):
    stop = EarlyStopping("eval/ndcg@20", mode="max", patience=1, min_delta=10.0)
    given = SHORT | {"callbacks": [stop], "rounds": 4}
    run = coterie.train("f3crec", out=tmp_path, name="stopped", **given)
    assert len(run.history) < 16  # it did end blocks
    clients = run.clients["client"]
    last = len(run.history)
    assert run.replay(round=last, client=int(clients.iloc[0])).proof == "transcript"


def test_the_command_prints_and_saves(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folder, client = trained[0], client_of(trained, 4)
    words = ["replay", str(folder), "--round", "4", "--client", str(client)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= max(80, len(str(folder)) + 4)
    for part in ("update: received", "update: sent", "Kept: private state", "transcript: yes"):
        assert part in text
    assert "norm before noise" in text
    assert main([*words, "--json", "--save", str(tmp_path / "out")]) == 0
    document = json.loads(capsys.readouterr().out)
    found = replay(folder, 4, client)
    update = next(step for step in document["steps"] if step["step"] == "update")
    [items] = [field for field in update["sent"] if field["field"] == "items"]
    dense = found.sent["update"].items.dense()[0]
    assert items["rows"] == dense.abs().sum(1).nonzero().flatten().tolist()
    run = coterie.load(folder)
    experiment, _ = run._open()
    mine = experiment.blocks[found.block]
    had = mine.take((mine.ids == client).nonzero().flatten())
    names = experiment.interactions.item_names
    changed = [item.split(" ")[0] for item in items["items"]]
    assert {names[item] for item in had.train.values.tolist()} <= set(changed)
    assert changed == [names[row] for row in items["rows"]]
    assert math.isclose(items["norm"], float(dense.double().norm()), rel_tol=1e-6)
    sent = load_file(tmp_path / "out" / "sent.safetensors")
    assert torch.equal(sent["update/loss"], found.sent["update"].loss)
    after = load_file(tmp_path / "out" / "after.safetensors")
    assert torch.equal(after["params.user"], found.after.params["user"])
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        f"{name}.safetensors" for name in ("after", "before", "received", "sent")
    ]
    assert main(["replay", str(folder), "--round", "99", "--client", "0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# What is said of tensors


def test_facts_are_those_of_a_plain_count():
    rows = FactoredRows(torch.tensor([0]), torch.tensor([[0.0, 2.0, 1.0]]), torch.ones(1, 2), 1)
    message = ItemUpdate(rows, None, torch.tensor(0.5), None)
    found = {fact.field: fact for fact in facts_of(message, ["a", "b", "c"])}
    assert list(found) == ["items", "loss"]
    assert found["items"].rows == [1, 2]
    assert found["items"].items == ["b", "c"]
    assert found["items"].bytes == 2 * (2 * 4 + 4)
    assert found["items"].norm == pytest.approx(math.sqrt(10))
    assert (found["loss"].bytes, found["loss"].values) == (4, [0.5])
    assert facts_of(message, ["a", "b"])[0].items is None  # fewer items than rows
    [number, undeclared] = facts_of({"n": 3, "rows": rows}, ["a", "b", "c"])
    assert (number.bytes, number.values, undeclared.items) == (0, 3, None)


def test_changes_are_those_of_every_bit():
    nan = float("nan")
    before = {
        "a": torch.tensor([[1.0, nan], [0.0, 2.0]]),
        "n": torch.tensor(1),
        "z": torch.zeros(1),
    }
    after = {
        "a": torch.tensor([[1.0, nan], [0.0, 5.0]]),
        "n": torch.tensor(2),
        "z": -torch.zeros(1),
    }
    a, n, z = changes_of(before, after)
    assert (a["changed"], a["rows"]) == (True, 1)
    assert (n["value_before"], n["value"], n["changed"]) == (1, 2, True)
    assert (z["changed"], z["rows"]) == (True, 0)  # minus zero: another bit, the same number
    assert not any(one["changed"] for one in changes_of(before, before))
    [grown, *_] = changes_of(None, after)
    assert grown["changed"]
    assert "norm_before" not in grown
    assert changes_of({"e": torch.empty(0, 3)}, {"e": torch.empty(0, 3)})[0]["rows"] == 0
