"""How the clients are cut into chunks changes nothing; odd clients and cohorts."""

import functools

import pytest
import torch
from tests.continual.stream import (
    ABLATIONS,
    METHODS,
    F3CRec,
    block_data,
    make_stream,
    settings,
    simulate,
)
from tests.in_process import cohort_in_process

from coterie.continual.client import ContinualClient
from coterie.continual.messages import UPDATE, ItemTable
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.uploads import Sum
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

BLOCKS = make_stream()
ROUNDS = {"rounds": 3}  # SPP draws in the second


@functools.cache
def whole(method, dtype="float64"):
    """The run with all clients stacked."""
    return simulate(settings(method, dtype=dtype, **ROUNDS), BLOCKS)


def assert_same(run, other, tolerance):
    assert [s.keys() for s in run.scalars] == [s.keys() for s in other.scalars]
    for a, b in zip(run.scalars, other.scalars, strict=True):
        assert a == pytest.approx(b, rel=0, abs=tolerance, nan_ok=True)
    for a, b in zip(run.clients, other.clients, strict=True):
        for name, (ids, values) in a.items():
            assert torch.equal(ids, b[name][0])
            torch.testing.assert_close(values, b[name][1], rtol=0, atol=tolerance, equal_nan=True)
    theirs = other.tensors()
    for name, value in run.tensors().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=tolerance, msg=name)
        else:
            assert torch.equal(value, theirs[name]), name
    assert run.refused == other.refused == []


@pytest.mark.parametrize(
    ("method", "chunk"), [(m, 20) for m in METHODS] + [("f3crec", 7), ("spp", 12)]
)
def test_chunks_float64(method, chunk):
    chosen = settings(method, **ROUNDS)
    assert_same(simulate(chosen, BLOCKS, chunk=chunk), whole(method), 1e-12)


@pytest.mark.parametrize(
    ("method", "backbone"),
    [
        ("f3crec", "fedmf"),
        ("f3crec", "fedncf"),
        ("f3crec", "pfedrec"),
        ("reg", "pfedrec"),
        ("spp", "fedncf"),
    ],
)
def test_chunks_of_other_backbones(method, backbone):
    """And of two epochs; of one epoch all methods have been seen with FedMF."""
    blocks, chosen = make_stream(30), settings(method, backbone, rounds=3, model={"epochs": 2})
    assert_same(simulate(chosen, blocks, chunk=11), simulate(chosen, blocks), 1e-12)


@pytest.mark.parametrize("method", ["reg", "rlp2", "spp", "f3crec"])
def test_chunks_float32(method):
    """F³CRec's base block is fine-tuning, and it replays as KD does."""
    chosen = settings(method, dtype="float32", **ROUNDS)
    assert_same(simulate(chosen, BLOCKS, chunk=17), whole(method, dtype="float32"), 1e-6)


@pytest.mark.parametrize("method", ["f3crec", "spp"])
def test_one_client_at_a_time_and_a_sample_of_clients(method):
    blocks, chosen = make_stream(30), settings(method, rounds=2, participation=0.3)
    run = simulate(chosen, blocks)
    assert_same(run, simulate(chosen, blocks, chunk=1), 1e-12)
    sizes = [round(0.3 * len(block.ids)) for block in blocks]
    clients = [int(s["fed/clients"]) for s in run.scalars]
    assert clients == [size for size in sizes for _ in range(2)]


@pytest.mark.parametrize("epochs", [1, 2])
def test_replay_sizes_are_equal_numbers(epochs):
    """So are the preference shifts they come from: no sum over clients is in between."""
    chosen = settings(rounds=2, model={"epochs": epochs})
    found = []
    for chunk in (None, 13):
        seen = {}

        def record(up, key, seen=seen):
            if hasattr(up, "replayed"):
                seen |= dict(zip(key.state.tolist(), up.replayed.tolist(), strict=True))
            return up

        simulate(chosen, BLOCKS, chunk=chunk, middleware=(record,))
        found.append(seen)
    assert found[0] == found[1]
    assert len(found[0]) == 2 * sum(len(block.ids) for block in BLOCKS)
    assert len(set(found[0].values())) > 6


@pytest.mark.parametrize("method", [*METHODS, *ABLATIONS])
def test_an_item_nobody_touches_stays(method):
    """Without negatives only positives move, and, once a method remembers, what it replays."""
    users = {u: ([u % 3, 3], [5], [6]) for u in range(9)}
    blocks = [block_data(users), block_data(users)]
    chosen = settings(method, rounds=2, model={"negatives": 0})
    run = simulate(chosen, blocks, n_items=(7, 8))
    start = F3CRec(chosen, (7, 8)).begin(Key.from_seed(0).fold("server").fold("begin")).items
    after = run.tables[0]
    torch.testing.assert_close(after[4:], start[4:], rtol=0, atol=0)
    assert bool(((after[:4] - start[:4]).abs() > 1e-6).all())
    if method in ("ft", "f3crec-wo-cc", "rlp2"):  # the others replay, or pull
        torch.testing.assert_close(run.tables[1][4:7], start[4:], rtol=0, atol=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_one_client(method):
    data = block_data({5: ([0, 2, 4], [1], [3])})
    run = simulate(settings(method), [data] * 3, n_items=(8, 8, 8))
    assert run.refused == []
    assert all(bool(value.isfinite().all()) for value in run.tensors().values())
    assert [s["fed/clients"] for s in run.scalars] == [1.0] * len(run.scalars)


def test_the_federated_round_of_one_client_is_local_sgd():
    """The table after the round is the client's own trained table."""
    data = block_data({5: ([0, 2, 4], [1], [3])})
    run = simulate(settings("ft", rounds=1), [data], n_items=(8,))
    chosen = settings("ft", rounds=1)
    server = F3CRec(chosen, (8,))
    begin = server.begin(Key.from_seed(0).fold("server").fold("begin"))
    cohort = cohort_of(chosen, data)
    cohort.enrol()
    mine = cohort.store.take(data.ids)
    key = cohort.secret.fold(data.ids).fold("update", 0, 1, 0)
    up, _ = cohort.client.update(ItemTable(begin.items), mine, data, key)
    torch.testing.assert_close(run.state.items, begin.items + up.items.dense()[0], rtol=0, atol=0)


def cohort_of(chosen, data, chunk=None, when=(0, 1)):
    secret = Key.from_seed(chosen.seed).fold("clients")
    parts = (PrivateStore(), secret, when, Ledger(), Journal(), chunk)
    return cohort_in_process(ContinualClient(chosen), data, *parts)


def test_a_thousand_clients():
    users = {u: ([u % 30, (7 * u + 1) % 30], [], [(u + 3) % 30]) for u in range(1000)}
    users = {u: ([*{*train}], valid, test) for u, (train, valid, test) in users.items()}
    data = block_data(users)
    chosen = settings("f3crec")
    totals = []
    for chunk in (None, 128):
        cohort = cohort_of(chosen, data, chunk)
        cohort.enrol()
        items = F3CRec(chosen, (30,)).begin(Key.from_seed(0)).items
        replies = cohort.ask(UPDATE, ItemTable(items), reduce=Sum())
        assert replies.ids.tolist() == list(range(1000))
        totals.append(replies.total.items.sum() / len(replies))
    torch.testing.assert_close(*totals, rtol=0, atol=1e-13)


def test_users_without_validation_or_test_items():
    """They train, have no value, and leave the means alone."""
    run = whole("f3crec")
    data = BLOCKS[-1]
    ids, values = run.clients[-1]["test/ndcg@20"]
    none = data.test.lengths == 0
    assert bool(none.any())
    assert torch.equal(values.isnan(), none)
    assert torch.equal(ids, data.ids)
    mean = float(values[~none].mean())
    assert run.scalars[-1]["test/block2/ndcg@20"] == pytest.approx(mean, abs=1e-12)


def test_nobody_has_a_validation_item():
    data = block_data({u: ([u, u + 1], [], []) for u in range(5)})
    run = simulate(settings("f3crec"), [data, data], n_items=(8, 8))
    assert run.refused == []
    assert "test/block1/ndcg@20" not in run.scalars[-1]  # what was not measured is no number


@pytest.mark.parametrize(
    ("backbone", "batch_size"), [("fedmf", 1), ("fedmf", 2), ("fedncf", 512), ("pfedrec", 2)]
)
def test_a_user_who_has_consumed_every_item(backbone, batch_size):
    data = block_data({0: (list(range(8)), [], []), 1: ([0, 1], [2], [3])})
    chosen = settings("f3crec", backbone, model={"batch_size": batch_size})
    run = simulate(chosen, [data, data], n_items=(8, 8))
    assert run.refused == []
    _, profile = run.private()
    assert all(bool(value.isfinite().all()) for _, value in tree.tensors(profile))
