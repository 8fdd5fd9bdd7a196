"""Nodes that are late, lie about who they are, come back: the exchange's clock and its list."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.linear_client import LinearClient
from tests.core.test_workers import HALF, NOISE, SECRET, cohort, folders, sample_data, slope
from tests.flaky import FlakyHosts
from tests.hosted import Here, Hosts, bits, each_alone, make_folders

from coterie.core.data.samples.samples import SampleData
from coterie.core.engines.envelope import NOBODY, ReplyHeader, RequestHeader
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.host import ClientHost
from coterie.core.engines.nodes import Nodes
from coterie.core.errors import UserError
from coterie.core.federation.exchange import Heard, Request, TooFew
from coterie.core.protocol.card import Card
from coterie.core.protocol.edition import PROTOCOL, message_form, with_edition
from coterie.core.protocol.messages import Aligned, Down, Step, carries
from coterie.core.wire.codec import decode, encode

STEPS = LinearClient.steps()
SLACK = 1.0  # seconds that a busy machine may take beside


class Sleepy(Here):
    """A node that answers once it is woken, unless nobody waits any more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.awake = threading.Event()
        self.awake.set()
        self.given_up = threading.Event()
        self.asked, self.closed = 0, False

    def give_up(self) -> None:
        self.given_up.set()

    def close(self) -> None:
        self.closed = True  # a test that fails must not wait for it

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        self.asked += 1
        self.given_up.clear()
        while not self.awake.wait(0.01):
            if self.given_up.is_set() or self.closed:
                return None
        return super().ask(parcel, seconds)


def sleepy(root: Path, **options: Any) -> tuple[Nodes, list[Sleepy]]:
    nodes = [Sleepy(folder) for folder in folders(root)]
    return Nodes(nodes, "a run", **options), nodes


def test_all_nodes_have_one_deadline_and_nobody_is_waited_for_twice(tmp_path):
    exchange, nodes = sleepy(tmp_path, deadline=1.2)
    with exchange:
        exchange.begin(1, 0)
        asked = cohort(exchange)
        for node in nodes[:2]:
            node.awake.clear()
        began = time.monotonic()
        replies = asked.ask(STEPS["update"], slope())
        took = time.monotonic() - began
        assert 1.2 <= took < 1.2 + SLACK
        assert replies.ids.tolist() == [11]
        assert replies.failed == dict.fromkeys((3, 8), "it gave no answer")
        calls, began = nodes[0].asked, time.monotonic()
        assert asked.ask(STEPS["measure"], slope()).ids.tolist() == [11]
        assert time.monotonic() - began < SLACK  # those who were late are not asked again
        assert exchange.present(0).tolist() == [11]
        assert exchange.members[0].question is None
        assert time.monotonic() - began < SLACK
        assert nodes[0].asked == calls
        began = time.monotonic()
        exchange.begin(2, 0)
        assert exchange.present(0).tolist() == [11]  # nor waited for
        assert time.monotonic() - began < SLACK
        for node in nodes:
            node.awake.set()
        _wait_for(lambda: exchange.members[0].question.reply.done())
        exchange.begin(3, 0)
        found = cohort(exchange, 3).ask(STEPS["update"], slope())
        assert found.ids.tolist() == [3, 8, 11]


def _wait_for(true: Any) -> None:
    until = time.monotonic() + 20
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    assert true()


def test_coming_up_has_a_limit_of_its_own(tmp_path):
    exchange, nodes = sleepy(tmp_path, deadline=0.05, start=20.0)
    with exchange:
        nodes[2].awake.clear()
        threading.Timer(0.4, nodes[2].awake.set).start()
        assert exchange.present(0).tolist() == [3, 8, 11]
    exchange, nodes = sleepy(tmp_path / "never", deadline=0.05, start=0.3)
    with exchange:
        nodes[1].awake.clear()
        assert exchange.present(0).tolist() == [3, 11]
        assert [one["here"] for one in exchange.status()] == [True, False, True]
        nodes[1].give_up()


def test_a_try_waits_for_who_is_away_as_long_as_the_deadline(tmp_path):
    exchange, nodes = sleepy(tmp_path, deadline=5.0)
    with exchange:
        exchange.begin(1, 0)
        asked = cohort(exchange)
        nodes[0].awake.clear()
        exchange.deadline = 0.1
        assert asked.ask(STEPS["update"], slope()).ids.tolist() == [8, 11]
        exchange.deadline = 5.0
        threading.Timer(0.3, nodes[0].awake.set).start()
        exchange.begin(1, 1)
        assert exchange.present(0).tolist() == [3, 8, 11]


def test_a_late_answer_counts_for_nothing_and_is_taken_back(tmp_path):
    """The client trained in round 1, and nobody heard of it: round 2 goes on from before."""
    exchange = FlakyHosts(folders(tmp_path))
    straight = Hosts(folders(tmp_path / "straight"))
    exchange.hosts[0].fault = lambda step, parcel: (
        "late" if step == "update" and parcel.header.turn == 1 else None
    )
    found = []
    for turn in (1, 2):
        for each in (exchange, straight):
            each.begin(turn, 0)
            asked = cohort(each, turn)
            if each is straight and turn == 1:
                asked = asked.part(torch.tensor([1, 2]))
            found.append(asked.ask(STEPS["update"], slope()))
    assert found[0].ids.tolist() == [8, 11]
    assert bits(found[2].up) == bits(found[3].up)
    one = torch.tensor([3])
    for path in (tmp_path, tmp_path / "straight"):
        assert int(ClientHost(path / "clients-0").exchange.store.take(one).visits) == 1


@pytest.mark.parametrize(
    ("demanded", "answered", "enough"),
    [
        *[(None, 0, True), (None, 1, True), (1.0, 9, False), (0.5, 5, True), (0.5, 4, False)],
        *[(15.0, 4, False), (15.0, 5, True), (30.0, 10, True), (30.0, 9, False), (0.3, 3, True)],
    ],
)
def test_a_part_of_the_clients_must_answer(tmp_path, demanded, answered, enough):
    """A number is of all thirty; of ten who are asked it is the same part of them."""
    ids = torch.arange(30)
    path = tmp_path / "clients-0"
    ClientFolder.create(path, Card("toy"), ids, SECRET.fold(ids), {0: thirty()}, half=HALF)
    exchange = Hosts([path], min_clients=demanded)
    assert exchange.present(0).numel() == 30
    heard = Heard("update", 0, 10, answered, silent=10 - answered)
    if enough:
        exchange.check(heard)
    else:
        with pytest.raises(TooFew, match=f"{answered} of 10 clients answered 'update'"):
            exchange.check(heard)
        if answered:  # another try would give the same
            with pytest.raises(UserError, match=r"lower engine\.min_clients"):
                exchange.check(replace(heard, silent=0))


def thirty() -> SampleData:
    each = [{"x": torch.ones(2, 3), "y": torch.ones(2)} for _ in range(30)]
    return SampleData.from_clients(each, list(range(30)))


def test_more_clients_than_there_are_cannot_be_demanded(tmp_path):
    exchange = Hosts(folders(tmp_path), min_clients=4)
    with pytest.raises(UserError, match="demands 4 clients, and there are 3"):
        exchange.present(0)


def test_nobody_at_all_is_too_few_for_a_step_with_an_answer(tmp_path):
    exchange = FlakyHosts(folders(tmp_path))
    asked = cohort(exchange)
    for host in exchange.hosts:
        host.fault = lambda step, parcel: "lost"
    with pytest.raises(TooFew, match="0 of 3 clients answered 'measure'"):
        asked.ask(STEPS["measure"], slope())
    asked.ask(STEPS["forget"], None)
    assert [len(one.waiting) for one in exchange.members] == [1, 1, 1]
    exchange.begin(2, 0)
    with pytest.raises(TooFew, match=r"0 of 3 clients are there.*clients-0 \(it gave no answer\)"):
        exchange.present(0)


@pytest.mark.parametrize("is_known", [True, False])
def test_messages_of_their_own_wait_for_who_is_away_too(is_known, tmp_path):
    """Whether the server was told whose clients they are, or knows it from the node alone."""
    ids = sample_data().ids
    expected = {f"clients-{n}": one for n, one in enumerate(each_alone(ids))}
    exchange = FlakyHosts(folders(tmp_path), expected=expected if is_known else None)
    exchange.begin(1, 0)
    cohort(exchange)
    exchange.hosts[1].fault = lambda step, parcel: "lost"
    cohort(exchange).ask(STEPS["measure"], slope())  # it is away from here on
    exchange.begin(2, 0)
    away = replace(cohort(exchange, 2), whole=True)
    assert away.ids.tolist() == [3, 11]
    own = Aligned(ids, Number(torch.tensor([1.0, 2.0, 4.0])))
    exchange.hosts[1].fault = lambda step, parcel: None
    request = Request(TOLD, own, away.ids, (0, 2), everyone=True, waits=True)
    list(exchange.ask(request))
    (message,) = exchange.members[1].waiting
    down, header = decode(message, Number, header=RequestHeader)
    assert header.clients.tolist() == [8]
    assert down.value.tolist() == [2.0]


@dataclass(frozen=True)
class Number(Down):
    value: torch.Tensor = carries("a number of one's own")


TOLD = Step("told", Number, None)


def test_a_node_with_anothers_clients_is_left_out_by_name(tmp_path, caplog):
    paths = folders(tmp_path)
    expected = {f"clients-{n}": one for n, one in enumerate(each_alone(sample_data().ids))}
    (paths[0] / "own.json").write_bytes((paths[1] / "own.json").read_bytes())
    (paths[0] / "data-0.safetensors").write_bytes((paths[1] / "data-0.safetensors").read_bytes())
    with caplog.at_level(logging.WARNING):
        exchange = Hosts(paths, expected=expected)
        assert exchange.present(0).tolist() == [8, 11]
        assert exchange.status()[0]["why"] == "it has clients that are another's"
        exchange = Hosts(paths)  # of which nothing is known: the first one is believed
        assert exchange.present(0).tolist() == [8, 11]
        assert [one["here"] for one in exchange.status()] == [True, False, True]
    assert "the clients of clients-0 are left out: it has clients that are another's" in caplog.text


def test_a_folder_of_another_run_or_card_is_told_before_the_first_round(tmp_path):
    paths = folders(tmp_path)
    first = Hosts(paths[:1], run="another")
    cohort(first).ask(STEPS["update"], slope())
    exchange = Hosts(paths, card=Card("toy"))
    assert exchange.present(0).tolist() == [8, 11]
    assert "private state of run 'another', not of 'a run'" in exchange.status()[0]["why"]
    exchange = Hosts(paths[1:], card=Card("toy", {"lr": 1}))
    with pytest.raises(TooFew, match="their card is another one than the server's"):
        exchange.present(0)


EDITION = with_edition(Card("toy"), STEPS)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol": PROTOCOL + 1}, f"protocol {PROTOCOL + 1}, and this client speaks {PROTOCOL}"),
        ({"versions": {"coterie-core": "9.9"}}, "coterie-core 9.9, and this client has"),
        ({"versions": {"coterie-other": "1.0"}}, "coterie-other 1.0, and .* is not installed"),
        ({"messages": EDITION.messages | {"measure": "0"}}, "messages of step 'measure' are not"),
        ({"messages": EDITION.messages | {"new": "0"}}, "messages of step 'new' are not"),
    ],
)
def test_a_client_of_another_version_says_what_differs(tmp_path, changes, why):
    data = sample_data()
    good, bad = tmp_path / "good", tmp_path / "bad"
    shards = each_alone(data.ids)
    paths = make_folders(good, {0: data}, SECRET, shards, EDITION, half=HALF)
    other = make_folders(bad, {0: data}, SECRET, shards, replace(EDITION, **changes), half=HALF)
    with pytest.raises(UserError, match=why):
        ClientHost(other[0])
    exchange = Hosts([paths[0], *other[1:]])
    assert exchange.present(0).tolist() == [3]
    told = exchange.status()[1]["why"]
    assert why.split(",")[0] in told
    assert str(tmp_path) not in told


def test_digests_of_messages_see_every_change():
    forms = {message_form(step) for step in STEPS.values()}
    assert len(forms) == len(STEPS)
    update = STEPS["update"]
    assert message_form(type(update)("update", update.down, update.up)) == message_form(update)
    assert message_form(type(update)("update", update.down, None)) != message_form(update)


def test_what_a_client_says_of_itself_is_cut_and_printable(tmp_path):
    exchange = FlakyHosts(folders(tmp_path))
    asked = cohort(exchange)
    node = exchange.hosts[0]

    def chatty(parcel: bytes, seconds: float | None) -> bytes | None:
        up, header = decode(Here.ask(node, parcel, seconds), None, header=ReplyHeader)
        long = replace(header, clients=NOBODY, refused={"3": "\x1b[2J" + "no " * 200})
        return encode(up, long)

    node.ask = chatty
    told = asked.ask(STEPS["forget"], None).failed[3]
    assert told.isprintable()
    assert len(told) == 200
    assert told.startswith(" [2Jno no")


def test_another_request_in_the_same_place_has_other_noise(tmp_path):
    """Else the difference of what two tries upload would be free of it."""
    clipped = {"privacy.clip": NOISE["privacy.clip"]}
    for name, settings in (("clipped", clipped), ("noisy", NOISE)):
        paths = folders(tmp_path / name, card=Card("toy", settings))
        ups = []
        for attempt, down in enumerate((slope(), slope(1), slope())):
            exchange = Hosts(paths)  # as after a kill: what was heard is forgotten
            exchange.begin(1, attempt)
            ups.append(cohort(exchange).ask(STEPS["update"], down).up.change["linear.w"])
        first, second, again = ups
        assert torch.equal(first, again)  # the same request has the same answer
        if name == "clipped":
            clean = first - second
        else:
            assert not torch.allclose(first - second, clean, atol=1e-4)


def test_secrets_of_real_clients_are_drawn_by_the_system_and_stay(tmp_path):
    ids, data = torch.tensor([3]), sample_data().take(torch.tensor([0]))
    made = [
        ClientFolder.create(tmp_path / name, Card("toy"), ids, None, {0: data}, half=HALF)
        for name in ("here", "there", "here")
    ]
    secrets = [int(one.secrets(ids).state) for one in made]
    assert secrets[0] == secrets[2] != secrets[1]
    assert all(abs(secret) > 1 << 32 for secret in secrets)
