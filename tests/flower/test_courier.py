"""Parcels over Flower's messages: the same bits, and who fails, lies or is late."""

from __future__ import annotations

import pickle
import threading
import time

import pytest
import torch
from flwr.app import Message
from tests.core.run.test_apart import experiment
from tests.flower.fake_grid import by_app, by_service, grid_of, listening, quick
from tests.hosted import TakenApart, bits

from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.flower.courier import Courier, FlowerNode, FlowerNodes
from coterie.core.run.certify import InShards
from coterie.core.run.driver import FederatedRun

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
ROUNDS = 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quick(monkeypatch)


def taken_apart(tmp_path, case="fedavg"):
    found = experiment(case, tmp_path)
    whole = found.federation()
    ids = torch.cat([data.ids for data in whole.blocks]).unique()
    shards = [ids[number::2] for number in range(2)]
    return whole, shards, TakenApart.of(found, tmp_path, shards, whole)


def in_shards(whole, shards) -> FederatedRun:
    from dataclasses import replace

    from coterie.core.protocol.run_keys import RunKeys

    secrets = RunKeys(whole.seed).clients.fold
    exchange = InShards(
        whole.client, whole.blocks, secrets, None, whole.middleware, whole.bounds, shards=shards
    )
    return FederatedRun(replace(whole, exchange=exchange))


@pytest.mark.parametrize("case", ["fedavg", "scaffold"])
def test_the_bits_of_one_process_over_client_app_and_socket(case, tmp_path):
    whole, shards, apart = taken_apart(tmp_path, case)
    inside = in_shards(whole, shards)
    answers = {}
    for number, folder in enumerate(apart.folders):
        node = tmp_path / f"node-{number}"
        node.mkdir()
        folder.rename(node / folder.name)
        socket = tmp_path / f"s{number}"
        with listening(node, socket):
            answers[folder.name] = by_app(socket)
    grid, keys = grid_of(tmp_path, answers)
    with FlowerNodes(grid, keys, "a run", deadline=60.0, **apart.known) as nodes:
        outside = apart.over(nodes)
        for _ in range(ROUNDS):
            inside.advance()
            outside.advance()
            assert bits(outside.server_state) == bits(inside.server_state)
            assert outside.journal.scalars == {
                name: value
                for name, value in inside.journal.scalars.items()
                if name != "cost/local_steps"
            }
            assert outside.ledger.rows() == inside.ledger.rows()
            assert not outside.journal.refused
        heard = nodes.to_plain()["heard"]
    for number, shard in enumerate(shards):
        folder = tmp_path / f"node-{number}" / f"clients-{number}"
        kept = ClientHost(folder)
        assert kept.position.newest.name == heard[folder.name]
        assert bits(kept.exchange.store.take(shard)) == bits(inside.store.take(shard))
    assert all(message.metadata.ttl <= 60.0 for message in grid.pushed)


def test_a_node_that_fails_once_is_asked_again(tmp_path):
    whole, shards, apart = taken_apart(tmp_path)
    inside = in_shards(whole, shards)
    failed = []

    def flaky(message: Message) -> Message:
        if len(failed) < 3:
            failed.append(message)
            raise RuntimeError("the process with the clients is not there")
        return healthy(message)

    healthy = by_service([apart.folders[0]])
    answers = {"clients-0": flaky, "clients-1": by_service([apart.folders[1]])}
    grid, keys = grid_of(tmp_path, answers)
    with FlowerNodes(grid, keys, "a run", deadline=60.0, **apart.known) as nodes:
        outside = apart.over(nodes)
        outside.advance()
        inside.advance()
        assert bits(outside.server_state) == bits(inside.server_state)
        assert nodes.costs.late == set()
    assert len(failed) == 3


LIES = {
    "cut": lambda reply, first: reply[: len(reply) // 2],
    "garbage": lambda reply, first: b"\x00" * 400,
    "nothing": lambda reply, first: b"",
    "pickle": lambda reply, first: pickle.dumps({"w": 1}),
    "100 MB": lambda reply, first: reply + b"\x00" * (100 << 20),
    "replay": lambda reply, first: first,
    "not finite": lambda reply, first: reply[:-64] + b"\xff" * 64,
}
"""What a node sends, of its true reply and of the first that it gave."""


@pytest.mark.long
@pytest.mark.parametrize("how", LIES)
def test_a_lying_node_is_refused_by_name_and_the_honest_one_counts(how, tmp_path):
    _, _, apart = taken_apart(tmp_path)
    lying, first = [False], []

    def said(reply: bytes) -> bytes:
        first.append(reply)
        return LIES[how](reply, first[0]) if lying[0] else reply

    answers = {
        "clients-0": by_service([apart.folders[0]], said),
        "clients-1": by_service([apart.folders[1]]),
    }
    grid, keys = grid_of(tmp_path, answers)
    with FlowerNodes(grid, keys, "a run", deadline=60.0, **apart.known) as nodes:
        run = apart.over(nodes)
        run.advance()
        lying[0] = True
        before = bits(run.server_state)
        run.advance()
        assert bits(run.server_state) != before
        assert all(bool(torch.isfinite(t).all()) for t in _tensors(run.server_state))
        refused = {client for step, client, _ in run.journal.refused if step == "update"}
    liar = set(apart.expected["clients-0"].tolist())
    assert refused <= liar
    assert refused


def _tensors(state):
    from coterie.core.tensors import tree

    return [one for _, one in tree.tensors(state) if one.is_floating_point()]


def test_a_node_is_known_by_its_key_not_by_what_it_says(tmp_path):
    """The folder of another, behind a key of its own; and the right folder behind a wrong key."""
    _, _, apart = taken_apart(tmp_path)
    stolen = by_service([apart.folders[1].rename(apart.folders[1].with_name("stolen"))])

    def claims(message: Message) -> Message:
        message.content["control"]["folder"] = "stolen"
        return stolen(message)

    grid, keys = grid_of(tmp_path, {"clients-0": claims, "clients-1": claims})
    strange = dict(keys)
    strange["clients-1"] = keys["clients-0"][:-30] + keys["clients-1"][-30:]
    with FlowerNodes(grid, strange, "a run", start=0.3, deadline=0.3, **apart.known) as nodes:
        with pytest.raises(UserError, match="0 of 6 clients are there"):
            apart.over(nodes).advance()
        why = {row["node"]: row["why"] for row in nodes.status()}
    assert why == {
        "clients-0": "it has clients that are another's",
        "clients-1": "it gave no answer",
    }


def test_who_is_late_is_given_up_at_the_deadline(tmp_path):
    _, _, apart = taken_apart(tmp_path)
    hang = threading.Event()

    def slow(message: Message) -> Message:
        reply = healthy(message)
        if hang.is_set():
            time.sleep(5.0)
        return reply

    healthy = by_service([apart.folders[0]])
    answers = {"clients-0": slow, "clients-1": by_service([apart.folders[1]])}
    grid, keys = grid_of(tmp_path, answers)
    with FlowerNodes(grid, keys, "a run", deadline=20.0, **apart.known) as nodes:
        run = apart.over(nodes)
        run.advance()
        hang.set()
        nodes.deadline = 0.5
        began = time.monotonic()
        run.advance()
        assert time.monotonic() - began < 2.5
        assert nodes.costs.late == {"clients-0"}
        assert nodes.costs.waited > 0.4


def test_a_node_that_comes_online_later_is_found(tmp_path):
    _, _, apart = taken_apart(tmp_path)
    answers = {folder.name: by_service([folder]) for folder in apart.folders}
    grid, keys = grid_of(tmp_path, answers)
    grid.offline = {1, 2}
    threading.Timer(0.3, grid.offline.clear).start()
    with FlowerNodes(grid, keys, "a run", start=30.0, deadline=20.0, **apart.known) as nodes:
        run = apart.over(nodes)
        run.advance()
        assert all(row["here"] for row in nodes.status())


def test_a_superlink_that_is_gone_ends_the_run_in_one_line(tmp_path):
    _, _, apart = taken_apart(tmp_path)
    answers = {folder.name: by_service([folder]) for folder in apart.folders}
    grid, keys = grid_of(tmp_path, answers)
    with FlowerNodes(grid, keys, "a run", deadline=20.0, **apart.known) as nodes:
        run = apart.over(nodes)
        run.advance()
        grid.broken = ConnectionError("/secret/path")
        with pytest.raises(UserError, match=r"carries nothing .* \(ConnectionError\).*resume=true"):
            run.advance()


def test_an_ask_ends_when_it_is_given_up_or_its_time_is_over(tmp_path):
    grid, keys = grid_of(tmp_path, {"silent": lambda message: None})
    courier = Courier(grid)
    node = FlowerNode("silent", keys["silent"], courier)
    began = time.monotonic()
    assert node.ask(b"parcel", 0.2) is None
    assert 0.15 < time.monotonic() - began < 2.0
    threading.Timer(0.2, node.give_up).start()
    began = time.monotonic()
    assert node.ask(b"parcel", None) is None
    assert 0.15 < time.monotonic() - began < 2.0
    courier.close()
