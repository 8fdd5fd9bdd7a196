"""The transcript: what the ledger counts, line by line, with hashes of what crossed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.core.liars import Liars, Model
from tests.core.liars import Own as Data
from tests.core.relays import ROWS, Organisation, federation
from tests.flaky import FlakyHosts, once
from tests.hosted import Hosts, each_alone, make_folders

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger, Transcript, altered, read_transcript
from coterie.core.methods.kit.uploads import Weighted
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Aligned
from coterie.core.protocol.uploads import Sum
from coterie.core.run.checkpoint import LAST
from coterie.core.run.driver import FederatedRun
from coterie.core.run.metrics_file import read_metrics
from coterie.core.tensors.keys import Key
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.callbacks.files import TranscriptFile
from coterie.core.training.trainer import fit

IDS = (2, 5, 9)
ROUNDS, BLOCKS = 3, 2
PARTIES = ("block", "round", "step", "direction", "field", "sender", "receiver", "relay")


def train(folder: Path, **options) -> FederatedRun:
    """Train to the end, from the last checkpoint of the folder if it has one."""
    run = FederatedRun(federation(IDS, ROUNDS, blocks=BLOCKS, **options))
    using, last = [TranscriptFile(folder), Checkpoints(folder, 2)], folder / LAST
    fit(run, using, ckpt_path=last if last.is_file() else None)
    return run


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "transcript.jsonl").open()]


def summed(found: list[dict], names: tuple[str, ...]) -> dict[tuple, tuple[int, int]]:
    messages, sizes = Counter(), Counter()
    for line in found:
        key = tuple(line[name] for name in names)
        messages[key] += line["messages"]
        sizes[key] += line["bytes"]
    return {key: (messages[key], sizes[key]) for key in messages}


def totals(ledger: Ledger) -> dict[tuple, tuple[int, int]]:
    rows = ledger.rows()
    return {(r["step"], r["direction"], r["field"]): (r["messages"], r["bytes"]) for r in rows}


def heard(ledger: Ledger) -> list[dict]:
    """The lines of a ledger, as they come."""
    found: list[dict] = []
    ledger.transcript = Transcript(
        lambda text: found.extend(json.loads(line) for line in text.splitlines())
    )
    return found


def test_the_transcript_is_the_ledger_line_by_line(tmp_path):
    run = FederatedRun(federation(IDS, ROUNDS, blocks=BLOCKS))
    file, parties = TranscriptFile(tmp_path), {}
    file.on_train_start(None, SimpleNamespace(run=run))
    while not run.finished:
        run.advance()
        for row in run.ledger.parties():
            counted = row.pop("messages"), row.pop("bytes")
            parties[tuple(row[name] for name in PARTIES)] = counted
    found = lines(tmp_path)
    assert summed(found, ("step", "direction", "field")) == totals(run.ledger)
    assert summed(found, PARTIES) == parties
    assert sum(line["bytes"] for line in found if line["direction"] == "up") == run.ledger.bytes(
        "up"
    )


def test_who_is_named_and_how_many_lines_there_are(tmp_path):
    train(tmp_path)
    found = lines(tmp_path)
    n, peers = len(IDS), len(IDS) - 1
    residual = n * 3  # target down; residual and number of rows up
    round_ = residual + n * (peers + 1 + peers) + n * (peers + 1)
    assert len(found) == BLOCKS * (residual + ROUNDS * round_ + residual)
    ways = Counter((li["direction"], li["field"], li["sender"], li["receiver"]) for li in found)
    assert {way for way in ways if way[1] in ("residuals", "fits", "residual")} == {
        *(("up", "residual", str(one), "clients") for one in IDS),
        *(("down", "residuals", str(one), str(to)) for one in IDS for to in IDS if to != one),
        *(("down", "fits", str(one), str(to)) for one in IDS for to in IDS if to != one),
        *(("up", "fits", str(one), str(to)) for one in IDS for to in IDS if to != one),
    }
    passed_on = {(li["direction"], li["field"]) for li in found if li["relay"]}
    assert passed_on == {
        ("up", "residual"),
        ("down", "residuals"),
        ("up", "fits"),
        ("down", "fits"),
    }
    assert {li["relay"] for li in found} == {"", "server"}
    vectors = [li for li in found if li["field"] == "residuals"]
    assert {(li["rows"], li["values"], li["bytes"]) for li in vectors} == {(ROWS, ROWS, 4 * ROWS)}
    [number] = {(li["rows"], li["values"], li["bytes"]) for li in found if li["field"] == "rows"}
    assert number == (None, 1, 8)
    assert {li["round"] for li in found if li["step"] == "residual"} == {0, 1, 2, 3}


def test_hashes_are_of_the_bytes_and_the_same_on_both_legs_of_a_relay(tmp_path):
    run = train(tmp_path)
    found = [li for li in lines(tmp_path) if li["block"] == 0 and li["round"] == 0]
    first = FederatedRun(federation(IDS, ROUNDS, blocks=BLOCKS))
    first.exchange.enrol(torch.tensor(IDS), 0)
    for one in IDS:
        left = first.store.take(torch.tensor([one])).residual
        expected = hashlib.sha256(left.numpy().tobytes()).hexdigest()
        sent = [
            li["hash"] for li in found if li["field"] == "residual" and li["sender"] == str(one)
        ]
        assert sent == [expected]
    both = lines(tmp_path)
    assert altered(both) == []
    up = {(li["sender"], li["receiver"], li["hash"]) for li in both if li["field"] == "fits"}
    assert len(up) == 6 * len({(li["block"], li["round"]) for li in both if li["step"] == "fit"})
    assert run.finished


def test_a_relay_that_was_changed_is_seen(tmp_path):
    train(tmp_path, liar=2)
    (wrong,) = altered(read_transcript(tmp_path / "transcript.jsonl"))
    assert (wrong["round"], wrong["sender"], wrong["receiver"]) == (2, "2", "9")
    assert (wrong["field"], wrong["relay"]) == ("residuals", "server")


def test_hashes_change_if_and_only_if_values_do(tmp_path):
    for name, liar in (("one", 0), ("again", 0), ("other", 2)):
        train(tmp_path / name, liar=liar)
    one, again, other = (lines(tmp_path / name) for name in ("one", "again", "other"))
    assert one == again
    different = [
        (a["round"], a["step"], a["direction"], a["field"], a["sender"], a["receiver"])
        for a, b in zip(one, other, strict=True)
        if a["hash"] != b["hash"] and (a["block"], a["round"]) == (0, 2)
    ]
    # The changed residual, and the one fit that is made of it, up and down, and its loss.
    assert different[:3] == [
        (2, "fit", "down", "residuals", "2", "9"),
        (2, "fit", "up", "fits", "9", "2"),
        (2, "update", "down", "fits", "9", "2"),
    ]
    assert {way[1:4] for way in different[3:]} <= {("update", "up", "loss")}
    sizes = [[{**li, "hash": ""} for li in run] for run in (one, other)]
    assert sizes[0] == sizes[1]


def killed(folder: str, number: int) -> None:
    """Train in a process that kills itself after it has written the lines of so many asks."""
    torch.set_num_threads(1)
    write, calls = TranscriptFile._append, [0]

    def counted(self: TranscriptFile, text: str) -> None:
        calls[0] += 1
        if calls[0] == number:
            self.path.open("ab").write(text[:40].encode())  # half a line
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, text)

    TranscriptFile._append = counted  # type: ignore[method-assign]
    train(Path(folder))


@pytest.mark.parametrize("number", [1, 3, 9, 14, 20])
def test_a_killed_and_resumed_run_has_the_transcript_of_an_uninterrupted_one(tmp_path, number):
    whole = train(tmp_path / "whole")
    folder = tmp_path / "killed"
    child = multiprocessing.get_context("fork").Process(target=killed, args=(str(folder), number))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    before = (folder / "transcript.jsonl").read_bytes()
    resumed = train(folder)
    expected = (tmp_path / "whole" / "transcript.jsonl").read_bytes()
    assert not before.endswith(b"\n")  # half a line was written
    assert (folder / "transcript.jsonl").read_bytes() == expected
    assert totals(resumed.ledger) == totals(whole.ledger)
    assert summed(lines(folder), ("step", "direction", "field")) == totals(resumed.ledger)


def test_what_was_there_is_not_written_again(tmp_path):
    """A run that is complete, or looked into, leaves its file as it is."""
    train(tmp_path)
    before = (tmp_path / "transcript.jsonl").read_bytes()
    train(tmp_path)
    assert (tmp_path / "transcript.jsonl").read_bytes() == before


def test_a_file_that_is_too_short_or_missing_is_refused_in_one_line(tmp_path):
    train(tmp_path)
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"transcript.jsonl has \d+ bytes of \d+: put back") as why:
        train(tmp_path)
    assert "\n" not in str(why.value)
    run = FederatedRun(federation(IDS, ROUNDS, blocks=BLOCKS))
    run.round = 2
    with pytest.raises(UserError, match=r"no transcript of the rounds so far.*--run\.name"):
        TranscriptFile(tmp_path).on_train_start(None, SimpleNamespace(run=run))


@pytest.mark.parametrize("tries", [1, 2])
def test_worker_processes_give_the_same_transcript(tries, tmp_path):
    """The hashes are of what the server receives: what came through bytes, of the try that counts.

    That a round was tried again leaves no trace in it.
    """
    train(tmp_path / "inside")
    data = {b: one for b, one in enumerate(federation(IDS).blocks)}
    ids = torch.tensor(IDS)
    run = FederatedRun(federation(IDS, ROUNDS, blocks=BLOCKS))
    folders = make_folders(tmp_path / "c", data, run.secret, each_alone(ids), form="list")
    with FlakyHosts(folders, Organisation(), min_clients=1.0) as hosts:
        if tries > 1:
            hosts.hosts[1].fault = once("fit", 2, "late")
        outside = FederatedRun(replace(run.federation, exchange=hosts))
        fit(outside, [TranscriptFile(tmp_path / "outside")])
        assert max(attempt for _, _, attempt in hosts.hosts[1].heard) == tries - 1
    assert lines(tmp_path / "outside") == lines(tmp_path / "inside")
    assert altered(lines(tmp_path / "outside")) == []


def test_the_command_writes_it_and_says_what_epsilon_is_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = [
        "--data=sample",
        "--rounds=1",
        "--model.dim=4",
        "--data.fractions=[0.9]",
        "--run.name=a",
    ]
    noise = ["--privacy.noise=laplace", "--privacy.clip=1", "--privacy.scale=2"]
    entries = ["--privacy.clip_by=entry", "--privacy.steps=[update]"]
    quiet = ["--run.progress=false", "--logger.wandb=off", "--logger.transcript"]
    assert main(["train", "f3crec", *small, *noise, *entries, *quiet]) == 0
    folder = tmp_path / "runs" / "f3crec" / "a"
    ledger = Ledger()
    ledger.load(json.loads((folder / "ledger.json").read_text()))
    assert summed(lines(folder), ("step", "direction", "field")) == totals(ledger)
    (note,) = json.loads((folder / "summary.json").read_text())["notes"]
    assert note.startswith("privacy/epsilon is for one entry")
    _, rounds = read_metrics(folder)
    assert {row["privacy/epsilon"] for row in rounds} == {"1", "2"}  # 2 b / λ a round, two blocks


DOWN = Model({"w": torch.ones(20, 8)})
USERS = Data(torch.tensor(IDS))


def asked(exchange, down, fold=None):
    ledger = Ledger()
    found = heard(ledger)
    cohort = ExchangeCohort(exchange, exchange.present(0), (0, 3), ledger, Journal())
    cohort.enrol()
    ledger.begin_round(0, 3)
    cohort.ask(Liars.steps()["update"], down, reduce=fold)
    assert summed(found, ("step", "direction", "field")) == totals(ledger)
    assert summed(found, PARTIES) == {
        tuple(row[name] for name in PARTIES): (row["messages"], row["bytes"])
        for row in ledger.parties()
    }
    return {line["field"]: line for line in found}


@pytest.mark.parametrize("chunk", [None, 2])
def test_users_have_a_line_an_ask_however_they_are_stacked(chunk):
    secrets = Key.from_seed(0).fold
    found = asked(InProcess(Liars(0, None), {0: USERS}, secrets, chunk), DOWN)
    assert list(found) == ["weights.w", "change", "samples", "loss"]
    down, change = found["weights.w"], found["change"]
    assert (down["sender"], down["receiver"], down["messages"]) == ("server", "clients", 3)
    assert (down["rows"], down["values"], down["bytes"]) == (20, 3 * 160, 3 * 640)
    one = DOWN.weights["w"].numpy().tobytes()
    assert down["hash"] == hashlib.sha256(one).hexdigest()
    changes = secrets(USERS.ids).fold("update", 0, 3, 0).normal(20, 8)
    assert change["hash"] == hashlib.sha256(changes.numpy().tobytes()).hexdigest()
    assert (change["rows"], change["values"], change["messages"]) == (None, 480, 3)  # a dict
    assert (found["loss"]["rows"], found["loss"]["values"]) == (None, 3)


def test_messages_of_ones_own_are_hashed_together():
    each = {"w": torch.arange(3 * 20 * 8.0).reshape(3, 20, 8)}
    secrets = Key.from_seed(0).fold
    whole = asked(
        InProcess(Liars(0, None), {0: USERS}, secrets, 2), Aligned(USERS.ids, Model(each))
    )
    line = whole["weights.w"]
    assert (line["rows"], line["values"], line["messages"]) == (20, 480, 3)
    assert line["hash"] == hashlib.sha256(each["w"].numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("fold", [Sum(), Weighted("samples")])
def test_uploads_that_were_folded_where_the_clients_are(tmp_path, fold):
    secret = Key.from_seed(0)
    shards = [torch.tensor([2, 9]), torch.tensor([5])]
    folders = make_folders(tmp_path, {0: USERS}, secret, shards)
    with Hosts(folders, Liars(0, None)) as hosts:
        outside = asked(hosts, DOWN, fold)
    inside = asked(InProcess(Liars(0, None), {0: USERS}, secret.fold, 2), DOWN, fold)
    for field in ("change", "samples", "loss"):
        for name in ("messages", "bytes"):
            assert outside[field][name] == inside[field][name]
    sums = [secret.fold(s).fold("update", 0, 3, 0).normal(20, 8) for s in shards]
    weight = 5 if isinstance(fold, Weighted) else 1
    expected = hashlib.sha256()
    for changes in sums:
        expected.update((weight * changes).sum(0).numpy().tobytes())
    assert outside["change"]["hash"] == expected.hexdigest()
    assert outside["change"]["values"] == 2 * 160


def test_what_crosses_beside_messages_has_a_line_without_a_hash():
    ledger = Ledger()
    found = heard(ledger)
    ledger.crossed("update", "up", "activations", 2, 4096)
    ledger.crossed("update", "down", "gradients", 1, 8)
    ways = [(li["sender"], li["receiver"], li["messages"], li["bytes"]) for li in found]
    assert ways == [("clients", "server", 2, 4096), ("server", "clients", 1, 8)]
    assert {li["hash"] for li in found} == {None}
