"""Clients in processes of their own: a folder each, requests in and replies out."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.core.liars import Liars, Model, Own
from tests.core.linear_client import UPDATE, LinearClient, Slope, SlopeUpdate
from tests.hosted import Hosts, bits, each_alone, make_folders, same_both_ways

from coterie.core.data.samples.samples import SampleData
from coterie.core.engines import folder as folder_module
from coterie.core.engines.envelope import (
    NOBODY,
    Parcel,
    ParcelHeader,
    ReplyHeader,
    RequestHeader,
    read_frame,
)
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.host import ClientHost
from coterie.core.engines.processes import COMMAND, WorkerProcesses
from coterie.core.engines.worker import main
from coterie.core.errors import UserError
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.exchange import TooFew
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger
from coterie.core.flower.supervisor import alive
from coterie.core.protocol.card import Card
from coterie.core.protocol.journal import Journal
from coterie.core.run.certify import InShards
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import ProtocolError, decode, encode, peek

ROOT = Path(__file__).resolve().parents[2]
SECRET = Key.from_seed(8).fold("clients")
HALF = "tests.core.linear_client:make_client"
LENGTHS = {3: 5, 8: 1, 11: 4}
NOISE = {"privacy.clip": 0.05, "privacy.noise": "gaussian", "privacy.scale": 0.01}
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
}


def sample_data() -> SampleData:
    key = Key.from_seed(1)
    return SampleData.from_clients(
        [
            {"x": key.fold("x", c).normal(n, 3), "y": key.fold("y", c).normal(n)}
            for c, n in LENGTHS.items()
        ],
        list(LENGTHS),
    )


def slope(epochs=2) -> Slope:
    return Slope({"linear.w": torch.tensor([0.3, -0.2, 0.1])}, epochs)


def folders(root: Path, half: str = HALF, card: Card = Card("toy"), shards=None):  # noqa: B008, RUF100
    data = sample_data()
    shards = each_alone(data.ids) if shards is None else shards
    return make_folders(root, {0: data}, SECRET, shards, card, half=half)


def request(
    step="update", down=None, when=(0, 1), draw=0, client=3, run="a run", since="", order=(0, 1, 0)
) -> bytes:
    """A parcel of one request; ``since`` is one of those or its name."""
    epoch, turn, attempt = order
    message = encode(
        down if step != "update" or down else slope(),
        RequestHeader(*when, draw, step, torch.tensor([client])),
    )
    name = name_of(since) if isinstance(since, bytes) else since
    return Parcel(ParcelHeader(run, name, epoch, turn, attempt), (message,)).to_bytes()


def name_of(parcel: bytes) -> str:
    return Parcel.read(parcel).name


ENROLLED = request("@enrol")
FIRST = request(since=ENROLLED)
SECOND = request(draw=1, since=FIRST)


def host(tmp_path) -> ClientHost:
    path = folders(tmp_path)[0]
    found = ClientHost(path)
    found.answer(ENROLLED)
    return found


def visits(path: Path, client: int = 3) -> int:
    return int(ClientHost(path).exchange.store.take(torch.tensor([client])).visits)


def cohort(exchange, number=1):
    found = ExchangeCohort(exchange, exchange.present(0), (0, number), Ledger(), Journal())
    found.enrol()
    return found


STEPS = LinearClient.steps()
HEADER_FIELDS = dataclasses.fields(RequestHeader)


def test_all_steps_give_the_same_bits(tmp_path):
    asks = [("update", slope()), ("measure", slope()), ("forget", None), ("update", slope(1))]
    data = sample_data()
    same_both_ways(tmp_path, LinearClient(), data, asks, SECRET)
    pair = [torch.tensor([3, 11]), torch.tensor([8])]
    same_both_ways(tmp_path / "pair", LinearClient(), data, [asks[0], asks[-1]], SECRET, pair)


def test_two_asks_for_a_step_in_a_round_draw_differently_and_as_in_one_process(tmp_path):
    data = sample_data()
    here = Hosts(folders(tmp_path))
    inside = InShards(LinearClient(), {0: data}, SECRET.fold, shards=each_alone(data.ids))
    asked = [cohort(exchange) for exchange in (here, inside)]
    first, second = ([c.ask(STEPS["update"], slope()).up for c in asked] for _ in range(2))
    assert bits(first[0]) == bits(first[1])
    assert bits(second[0]) == bits(second[1])
    assert bits(first[0].change) != bits(second[0].change)


def test_two_asks_from_the_same_state_have_draws_of_their_own():
    ids = torch.tensor([2, 5])
    exchange = InProcess(Liars(0, None), {0: Own(ids)}, SECRET.fold)
    asked = cohort(exchange)
    update = Liars.steps()["update"]
    down = Model({"w": torch.zeros(20, 8)})
    first, second = (asked.ask(update, down).up.change["w"] for _ in range(2))
    again = cohort(InProcess(Liars(0, None), {0: Own(ids)}, SECRET.fold)).ask(update, down).up
    assert not torch.equal(first, second)
    assert torch.equal(first, again.change["w"])


@pytest.mark.long
def test_processes_train_and_survive_a_kill_or_a_delay(tmp_path):
    """Two real processes, that of a killed one goes on from what it has kept.

    Then one dies while it answers, and one answers too late. Each time a process is started anew,
    and in the next round all are there.
    """
    shards = [torch.tensor([3, 11]), torch.tensor([8])]
    paths = folders(tmp_path, shards=shards)
    here = Hosts(folders(tmp_path / "here", shards=shards))
    with WorkerProcesses(paths, "a run", environment=ENVIRONMENT) as workers:
        for number in (1, 2):
            asked = cohort(workers, number)
            if number == 2:
                victim = workers.workers[0]._handle
                victim.send_signal(signal.SIGKILL)
                victim.wait()
            found = asked.ask(STEPS["update"], slope())
            expected = cohort(here, number).ask(STEPS["update"], slope())
            assert found.ids.tolist() == [3, 8, 11]
            assert bits(found.up) == bits(expected.up)
        assert [visits(paths[0]), visits(paths[0], 11), visits(paths[1], 8)] == [2, 2, 2]
        _dies_while_it_answers(workers)
        _answers_too_late(workers)
        assert cohort(workers, 6).ask(STEPS["update"], slope()).ids.tolist() == [3, 8, 11]
    # Who died or was late was not asked again: it has trained in the rounds before and after.
    assert [visits(paths[0]), visits(paths[1], 8)] == [6, 4]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are found in /proc")
def test_a_worker_ends_with_its_parent_in_the_middle_of_a_step(tmp_path):
    """Standard input does not tell it, as it would not while nobody reads there."""
    (path,) = folders(tmp_path, shards=[torch.tensor([3])])
    requests, kept_open = os.pipe()
    words = [*COMMAND, "--folder", str(path)]
    script = f"import subprocess; subprocess.run({words!r}, start_new_session=True)"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=requests, stdout=subprocess.PIPE, env=ENVIRONMENT
    )
    assert read_frame(parent.stdout) == b""  # it is ready
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
    (worker,) = map(int, children.split())
    parent.kill()
    parent.wait()
    try:
        until = time.monotonic() + 20.0
        while alive(worker):
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        for end in (requests, kept_open):  # else what is left over would wait for ever
            os.close(end)
        parent.stdout.close()


def _dies_while_it_answers(workers):
    asked = cohort(workers, 3)
    process = workers.workers[1]._handle
    process.send_signal(signal.SIGSTOP)  # so that it is asked, and dies before it answers
    threading.Timer(1.0, process.kill).start()
    replies = asked.ask(STEPS["update"], slope())
    assert replies.ids.tolist() == [3, 11]
    assert replies.failed == {8: "it gave no answer"}
    workers.begin(4, 0)
    assert cohort(workers, 4).ask(STEPS["update"], slope()).ids.tolist() == [3, 8, 11]


def _answers_too_late(workers):
    asked = cohort(workers, 5)
    os.kill(workers.workers[1]._handle.pid, signal.SIGSTOP)
    workers.deadline, start = 1.0, time.monotonic()
    replies = asked.ask(STEPS["update"], slope())
    assert time.monotonic() - start < 20
    assert replies.ids.tolist() == [3, 11]
    workers.deadline = None
    workers.begin(6, 0)


def test_a_repeated_request_gives_the_same_bytes_and_trains_once(tmp_path):
    found = host(tmp_path)
    one = found.answer(FIRST)
    assert found.answer(FIRST) == one
    two = found.answer(SECOND)
    assert two != one
    # Also after the process was lost, and for every request of the round.
    again = ClientHost(found.folder.path)
    assert again.answer(FIRST) == one
    assert again.answer(SECOND) == two
    assert visits(found.folder.path) == 2


def after(*, when=(0, 3), order=(0, 3, 0), **changes) -> bytes:
    """A request that goes on from `FIRST`."""
    return request(when=when, order=order, since=FIRST, **changes)


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (request(since=ENROLLED, order=(0, 0, 0)), r"\(0, 0, 0\) after one of \(0, 1, 0\)"),
        (request(since=SECOND, order=(0, 2, 0)), "that these clients have not answered"),
        (request(since="0" * 64, order=(9, 0, 0)), "that these clients have not answered"),
        (after(run="another"), "of run 'a run', not of 'another'"),
        (after(step="@enrol", run="another"), "of run 'a run', not of 'another'"),
        (after(client=8), "client 8 is not of this folder"),
        (after(when=(1, 0)), "no part in block 1"),
        (after(step="updat", down=slope()), "no step 'updat'"),
        (after(step="__init__", down=slope()), "no step '__init__'"),
        (after(step="forget", down=slope()), "expected NoneType"),
        (after(step="measure"), "expected Slope"),
        (b"junk", "not a message"),
        (
            encode(None, RequestHeader(0, 3, 0, "update", torch.tensor([3]))),
            "field 'run' is missing",
        ),
    ],
)
def test_requests_that_are_old_or_wrong_are_refused_and_change_nothing(tmp_path, late, why):
    found = host(tmp_path)
    found.answer(FIRST)
    before = contents(found.folder.path)
    with pytest.raises(ProtocolError, match=why):
        found.answer(late)
    assert contents(found.folder.path) == before
    assert visits(found.folder.path) == 1
    assert ClientHost(found.folder.path).answer(SECOND) == found.answer(SECOND)


def test_clients_go_back_to_what_the_server_goes_on_from(tmp_path):
    """Of a round that is tried again they answer anew what is asked anew, from where it began."""
    found, straight = host(tmp_path), host(tmp_path / "straight")
    tried = [FIRST, SECOND]
    for one in tried:
        found.answer(one)
    other = request(down=slope(1), since=ENROLLED, order=(0, 1, 1))
    last = request(draw=1, since=other, order=(0, 1, 1))
    for again in (found, ClientHost(found.folder.path)):
        assert again.answer(other) == straight.answer(other)
        assert again.answer(last) == straight.answer(last)
    assert visits(found.folder.path) == visits(straight.folder.path) == 2
    # A try that was given up comes late, and does not take the later one back.
    with pytest.raises(ProtocolError, match=r"\(0, 1, 0\) after one of \(0, 1, 1\)"):
        found.answer(SECOND)
    onward = request(when=(0, 2), since=last, order=(0, 2, 0))
    assert found.answer(onward) == straight.answer(onward)


def test_the_same_request_of_a_later_try_gets_the_kept_reply(tmp_path):
    found = host(tmp_path)
    replies = [found.answer(FIRST), found.answer(SECOND)]
    later = [
        request(since=ENROLLED, order=(0, 1, 3)),
        request(draw=1, since=FIRST, order=(7, 1, 0)),
    ]
    assert [found.answer(one) for one in later] == replies
    assert visits(found.folder.path) == 2
    with pytest.raises(ProtocolError, match=r"after one of \(7, 1, 0\)"):
        ClientHost(found.folder.path).answer(FIRST)  # of a server that should be gone


def test_a_turn_that_has_begun_forgets_what_was_before_it(tmp_path):
    found = host(tmp_path)
    found.answer(FIRST)
    onward = request(when=(0, 2), since=FIRST, order=(0, 2, 0))
    reply = found.answer(onward)
    names = [point.name for point in found.position.points]
    assert names == [name_of(FIRST), name_of(onward)]
    assert len(list(found.folder.path.glob("state-*"))) == 2
    back = request(draw=5, since=ENROLLED, order=(0, 2, 1))
    with pytest.raises(ProtocolError, match="do not keep any more"):
        found.answer(back)
    again = request(when=(0, 2), down=slope(1), since=FIRST, order=(0, 2, 1))
    assert found.answer(again) != reply
    assert visits(found.folder.path) == 2


def missed(*requests, order=(0, 4, 0), since=FIRST) -> bytes:
    """A request after some that were missed."""
    messages = tuple(Parcel.read(one).messages[0] for one in requests)
    return Parcel(ParcelHeader("a run", name_of(since), *order), messages).to_bytes()


@pytest.mark.parametrize("clients", [torch.ones(1), torch.ones(1, 1, dtype=torch.int64)])
def test_ids_are_whole_numbers_in_a_row(clients):
    forged = dataclasses.make_dataclass("Forged", [one.name for one in HEADER_FIELDS])
    data = encode(None, forged(0, 1, 0, "update", clients, False, None, None))
    with pytest.raises(ProtocolError, match="not int64 in one axis"):
        peek(data, header=RequestHeader)
    fine = encode(None, forged(0, 1, 0, "update", torch.tensor([3]), False, None, None))
    assert peek(fine, header=RequestHeader).clients.tolist() == [3]


def test_what_was_missed_comes_with_the_next_request_in_order(tmp_path):
    found, straight = host(tmp_path), host(tmp_path / "straight")
    requests = [request(step="forget", when=(0, 2)), request(when=(0, 3)), request(when=(0, 4))]
    found.answer(FIRST)
    reply = found.answer(missed(*requests))
    since = FIRST
    straight.answer(FIRST)
    for number, one in enumerate(requests):
        (message,) = Parcel.read(one).messages
        since = Parcel(
            ParcelHeader("a run", name_of(since), 0, 2 + number, 0), (message,)
        ).to_bytes()
        expected = straight.answer(since)
    ups = [decode(one, SlopeUpdate, header=ReplyHeader)[0] for one in (reply, expected)]
    assert bits(ups[0]) == bits(ups[1])
    assert bits(found.exchange.store.take(torch.tensor([3]))) == bits(
        straight.exchange.store.take(torch.tensor([3]))
    )
    assert found.answer(missed(*requests)) == reply


def test_who_takes_no_part_in_a_block_has_missed_nothing_of_it(tmp_path):
    found = host(tmp_path)
    found.answer(FIRST)
    header = RequestHeader(7, 1, 0, "forget", NOBODY)  # everybody who takes part in block 7
    parcel = Parcel(
        ParcelHeader("a run", name_of(FIRST), 0, 2, 0),
        (encode(None, header), Parcel.read(request(when=(0, 2))).messages[0]),
    )
    found.answer(parcel.to_bytes())
    assert visits(found.folder.path) == 2


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@pytest.mark.parametrize("at", ["fdopen", "fsync", "replace"])
def test_a_disk_that_fails_changes_nothing(tmp_path, monkeypatch, at):
    found = host(tmp_path)
    path = found.folder.path
    found.answer(FIRST)
    before = contents(path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder_module.os, at, fail)
        with pytest.raises(UserError, match="No space left"):
            found.answer(SECOND)
    kept = contents(path)
    assert {name: kept[name] for name in before} == before
    expected = ClientHost(folders(tmp_path / "more")[0])
    expected.answer(ENROLLED)
    expected.answer(FIRST)
    assert ClientHost(path).answer(SECOND) == expected.answer(SECOND)
    assert visits(path) == 2


def test_a_kill_between_any_two_writes_loses_nothing(tmp_path):
    """The process dies at each of its file operations in turn, and is asked again."""
    reference = host(tmp_path / "reference")
    expected = [reference.answer(one) for one in (FIRST, SECOND)]
    for die_at in range(1, 40):
        path = folders(tmp_path / str(die_at))[0]
        ClientHost(path).answer(ENROLLED)
        died = _dies(path, die_at)
        found = ClientHost(path)
        assert [found.answer(one) for one in (FIRST, SECOND)] == expected
        assert visits(path) == 2
        if not died:
            break
    else:
        raise AssertionError("it always died")
    assert die_at > 6


def _dies(path: Path, at: int) -> bool:
    """Answer the first request; the process ends without a word at its n-th fsync or rename."""
    # Forked from a process without threads, which starts as quickly as a fork of this one.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    child = processes.Process(target=_answer_and_die, args=(path, at))
    child.start()
    child.join()
    assert child.exitcode in (0, 9)
    return child.exitcode == 9


def _answer_and_die(path: Path, at: int) -> None:
    calls = [0]

    def dying(original):
        def call(*args):
            calls[0] += 1
            if calls[0] == at:
                os._exit(9)
            found = original(*args)
            calls[0] += 1
            if calls[0] == at:
                os._exit(9)
            return found

        return call

    os.fsync, os.replace = dying(os.fsync), dying(os.replace)
    torch.set_num_threads(1)
    ClientHost(path).answer(FIRST)


class Faint(LinearClient):
    """One of two clients of a folder fails, after the other has trained."""

    fails = True

    @UPDATE
    def update(self, down, mine, data, key):
        if self.fails and data.ids.tolist() == [11]:
            raise RuntimeError("4711")
        return super().update(down, mine, data, key)


def test_a_step_that_fails_for_one_leaves_nothing_of_the_others(tmp_path, capsys):
    data, client = sample_data(), Faint()
    card = Card("toy", {"engine.chunk": 1})
    shards = [torch.tensor([3, 11]), torch.tensor([8])]
    exchange = Hosts(make_folders(tmp_path, {0: data}, SECRET, shards, card, half=HALF), client)
    replies = cohort(exchange).ask(STEPS["update"], slope())
    assert replies.ids.tolist() == [8]
    assert replies.failed == dict.fromkeys((3, 11), "the step failed on the client's side")
    assert "4711" in capsys.readouterr().err
    client.fails = False
    assert cohort(exchange, 2).ask(STEPS["update"], slope()).ids.tolist() == [3, 8, 11]
    assert visits(tmp_path / "clients-0", 3) == 1


def test_a_flipped_bit_in_the_private_state_is_noticed(tmp_path):
    found = host(tmp_path)
    found.answer(FIRST)
    state = found.folder.path / f"state-{found.position.newest.state}.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 4
    state.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        ClientHost(found.folder.path)


def test_files_of_a_client_are_its_own(tmp_path):
    found = host(tmp_path)
    found.answer(FIRST)
    for file in found.folder.path.iterdir():
        assert file.stat().st_mode & 0o077 == (0o044 if file.name == "card.json" else 0), file


def test_a_client_knows_its_own_secret_only(tmp_path):
    path = folders(tmp_path)[0]
    own = json.loads((path / "own.json").read_text())
    assert own["secrets"] == {"3": int(SECRET.fold(torch.tensor([3])).state)}
    assert str(int(SECRET.state)) not in "".join(
        file.read_text(errors="replace") for file in path.iterdir()
    )


def test_a_state_that_is_not_finite_is_rolled_back(tmp_path):
    found = host(tmp_path)
    found.answer(FIRST)
    reply: ReplyHeader = peek(found.answer(request("explode", since=FIRST)), header=ReplyHeader)
    assert reply.clients.tolist() == []
    assert "NaN or infinity in private state" in reply.refused["3"]
    assert visits(found.folder.path) == 1


def test_noise_is_added_where_the_client_is(tmp_path):
    data = sample_data()
    plain, noisy = (
        cohort(Hosts(folders(tmp_path / name, card=Card("toy", settings)))).ask(
            STEPS["update"], slope()
        )
        for name, settings in (("plain", {}), ("noisy", NOISE))
    )
    assert not torch.equal(plain.up.change["linear.w"], noisy.up.change["linear.w"])
    assert noisy.ids.tolist() == data.ids.tolist()


def edited(path: Path, name: str, **changes) -> Path:
    own = json.loads((path / name).read_text()) | changes
    (path / name).write_text(json.dumps(own))
    return path


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"half": "tests.core.linear_client:make_clint"}, "make_clint' .* not found"),
        ({"half": "no_such_module:f"}, "not found"),
        ({"half": "nonsense"}, "not found"),
        ({"half": "tests.core.linear_client:make_number"}, "gives no Client"),
        ({"half": 3}, "'half' must be there and of type str"),
        ({"secrets": None}, "'secrets' must be there"),
        ({"secrets": {"3": "x"}}, "a whole number for the id of each client"),
        ({"secrets": {"three": 3}}, "a whole number for the id of each client"),
        ({"secret": 1}, "'secret' is unknown: did you mean 'secrets'"),
        ({"threads": "two"}, "'threads' must be there and of type int"),
    ],
)
def test_wrong_settings_are_named(tmp_path, changes, complaint):
    path = edited(folders(tmp_path)[0], "own.json", **changes)
    with pytest.raises(UserError, match=complaint):
        ClientHost(path)


def test_damaged_or_missing_files_are_named(tmp_path, capsys):
    found = host(tmp_path)
    path = found.folder.path
    found.answer(FIRST)
    for name, content, complaint in (
        ("position.json", "{", "is damaged"),
        ("position.json", "[]", "is damaged"),
        ("own.json", "{", "is not JSON"),
        ("own.json", "[]", "must hold an object"),
        ("card.json", "[1]", "no card"),
        ("card.json", '{"settings": {"lr": 0.1, "rate": 1}, "paper": "toy"}', "does not suit"),
    ):
        good = (path / name).read_text()
        (path / name).write_text(content)
        with pytest.raises(UserError, match=complaint):
            ClientHost(path)
        (path / name).write_text(good)
    with pytest.raises(UserError, match="cannot read"):
        ClientHost(tmp_path / "nowhere")
    assert main(["--folder", str(tmp_path / "nowhere")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (path / "data-0.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"data-0\.safetensors is damaged"):
        ClientHost(path).answer(SECOND)


def test_a_paper_that_is_not_installed_is_said(tmp_path):
    data = sample_data()
    path = make_folders(tmp_path, {0: data}, SECRET, each_alone(data.ids), Card("no-such"))[0]
    with pytest.raises(UserError, match="'no-such' is not installed"):
        ClientHost(path)


def test_clients_that_are_not_there_in_a_block_are_not_asked(tmp_path):
    data = sample_data()
    later = data.take(torch.tensor([1, 2]))
    blocks = {0: data, 1: later}
    shards = each_alone(data.ids)
    exchange = Hosts(make_folders(tmp_path, blocks, SECRET, shards, half=HALF))
    assert exchange.present(0).tolist() == [3, 8, 11]
    assert exchange.present(1).tolist() == [8, 11]
    second = ExchangeCohort(exchange, exchange.present(1), (1, 1), Ledger(), Journal())
    assert second.enrol().tolist() == [8, 11]
    assert second.ask(STEPS["update"], slope()).ids.tolist() == [8, 11]


def test_a_client_that_joined_later_goes_on_from_what_it_has_kept(tmp_path):
    data = sample_data().take(torch.tensor([1]))
    (path,) = make_folders(tmp_path, {2: data}, SECRET, [torch.tensor([8])], half=HALF)
    exchange = Hosts([path])
    for number in (1, 2):
        exchange.hosts[0].restart()  # so that the folder is read anew
        late = ExchangeCohort(exchange, exchange.present(2), (2, number), Ledger(), Journal())
        assert late.ask(STEPS["update"], slope()).ids.tolist() == [8]
    assert visits(path, 8) == 2


def test_a_client_keeps_to_the_bounds_of_the_card(tmp_path):
    card = Card("toy", {"engine.max_norm": 1e-9})
    replies = cohort(Hosts(folders(tmp_path, card=card))).ask(STEPS["update"], slope())
    assert set(replies.failed.values()) == {"upload 'change' has a norm over the bound of 1e-09"}


def test_nobody_is_there():
    with WorkerProcesses([], "a run") as nobody:
        assert cohort(nobody).ask(STEPS["update"], slope()).up is None


@pytest.mark.long
def test_a_folder_that_cannot_be_served_is_left_out_by_name(tmp_path):
    paths = folders(tmp_path)
    for path in paths[1:]:
        (path / "own.json").write_text("{")
    with WorkerProcesses(paths, "a run", environment=ENVIRONMENT) as workers:
        assert workers.present(0).tolist() == [3]
        away = [one["node"] for one in workers.status() if not one["here"]]
        assert away == ["clients-1", "clients-2"]
    with (
        WorkerProcesses(paths[1:], "a run", environment=ENVIRONMENT) as workers,
        pytest.raises(TooFew, match=r"0 of 2 clients are there.*away: clients-1 \(it gave no"),
    ):
        workers.present(0)


@pytest.mark.parametrize("content", [b"\x05\x00", b"\x05" + b"\0" * 7 + b"ab", b"\xff" * 8])
def test_frames_that_are_cut_short_or_too_long(tmp_path, content):
    path = tmp_path / "frames"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(ProtocolError, match="frame"):
        read_frame(file)


def test_a_folder_is_replaced_and_state_stays(tmp_path):
    found = host(tmp_path)
    found.answer(FIRST)
    path = found.folder.path
    own = sample_data().take(torch.tensor([0]))
    ids = torch.tensor([3])
    ClientFolder.create(path, Card("toy"), ids, SECRET.fold(ids), {0: own}, half=HALF, threads=1)
    assert visits(path) == 1
    assert ClientHost(path).position.run == "a run"


def test_folders_of_two_federations_are_told_apart(tmp_path):
    ours = folders(tmp_path / "ours", card=Card("toy", data="1"))
    theirs = folders(tmp_path / "theirs", card=Card("toy", data="2"))
    with pytest.raises(UserError, match=r"theirs/clients-0 and .*ours/clients-0 hold clients of"):
        WorkerProcesses([ours[0], theirs[0]], "a run")
