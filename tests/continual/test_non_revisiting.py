"""Clients can access the current block only (section 3.1), and keep no interactions of others."""

import pickle
from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from tests.continual.stream import (
    ABLATIONS,
    BACKBONES,
    METHODS,
    block_data,
    make_stream,
    settings,
    simulate,
)

from coterie.continual.client import ContinualClient
from coterie.continual.messages import ClientState, EndedBlock, EvaluationTable, ItemTable, LookBack
from coterie.core.data.interactions.splits import UserRows
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

KEPT = {
    "ft": set(),
    "f3crec-wo-cc": set(),
    "reg": {"start"},
    "kd": {"items", "taught"},
    "f3crec": {"items", "taught"},
    "f3crec-wo-arm": {"items", "taught"},
    "f3crec-wo-sc": {"items", "taught"},
    "f3crec-wo-itm": {"items", "taught"},
    "rlp2": {"items", "label", "predicted"},
    "spp": {"slow", "fast", "n_old", "items", "taught", "drawn"},
}


class Poison:
    """Data of a block that is over."""

    def __getattribute__(self, name):
        raise AssertionError(f"data of an earlier block was read: {name}")


PARTS = ("train", "valid", "test", "earlier")
NO_ITEM = 10**6


def poison(t, blocks, run):
    """Spoil a block that is over: in the object that clients were given, and in its tensors."""
    for name in PARTS:
        part = getattr(blocks[t], name)
        if part is not None:
            part.values.fill_(NO_ITEM)
        object.__setattr__(blocks[t], name, Poison())


def test_the_poison_works():
    with pytest.raises(AssertionError, match="earlier block was read: train"):
        _ = Poison().train


@pytest.mark.parametrize("method", [*METHODS, *ABLATIONS])
def test_earlier_blocks_are_not_read(method):
    chosen = settings(method, rounds=2)
    run = simulate(chosen, make_stream(40))
    blocks = make_stream(40)
    poisoned = simulate(chosen, blocks, after_block=poison)
    assert type(blocks[1].__dict__["train"]) is Poison
    assert_same(run, poisoned)


@pytest.mark.parametrize(
    ("method", "use"),
    [(m, "both") for m in METHODS] + list(product(["kd", "f3crec"], ["distil", "leave-out"])),
)
def test_what_was_consumed_earlier_is_for_the_second_protocol_alone(method, use):
    """Other items of earlier blocks change nothing but the test that leaves them out."""
    chosen = settings(method, rounds=2)
    chosen = replace(chosen, replay=replace(chosen.replay, use=use))
    blocks = make_stream(40)
    any_items = [Ragged.from_lists([[0, 1, 2 + t]] * len(b.train)) for t, b in enumerate(blocks)]
    other = [replace(b, earlier=had) for b, had in zip(blocks, any_items, strict=True)]
    run, changed = simulate(chosen, blocks), simulate(chosen, other)
    assert_same(run, changed, but="_unseen")
    assert any(name.endswith("ndcg@20_unseen") for name in changed.scalars[-1])


def assert_same(run, other, but=None):
    """Bit for bit: what training left, and what was measured."""
    for name, value in run.tensors().items():
        assert torch.equal(value, other.tensors()[name]), name
    for a, b in zip(run.scalars, other.scalars, strict=True):
        a, b = ({n: v for n, v in s.items() if not but or but not in n} for s in (a, b))
        assert a == pytest.approx(b, abs=0, nan_ok=True)


def test_a_profile_holds_parameters_memory_counts_and_what_is_left_out():
    names = {"params", "best", "memory", "blocks", "last", "left_out"}
    assert {field.name for field in fields(ClientState)} == names
    assert set(KEPT) == {*METHODS, *ABLATIONS}


@pytest.mark.parametrize("use", ["distil", "both"])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", KEPT)
def test_no_step_leaves_anything_on_the_client_half(method, backbone, use):
    """Whatever lasts is private state, so what tests say of it is all there is."""
    chosen = settings(method, backbone)
    client = ContinualClient(replace(chosen, replay=replace(chosen.replay, use=use)))
    before = pickle.dumps(vars(client))
    table = Key.from_seed(3).fold(torch.arange(20)).normal(4, dtype=torch.float64)
    mine = client.enrol(DATA, KEY)
    for block in range(2):
        for step, down in (
            ("start_block", LookBack(block, table, table, table)),
            ("update", ItemTable(table, table)),
            ("evaluate", EvaluationTable(table)),
            ("keep_best", None),
            ("end_block", EndedBlock(table, block)),
            ("evaluate", EvaluationTable(table, "test")),
        ):
            _, new = getattr(client, step)(down, mine, DATA, KEY)
            mine = mine if new is None else new
            assert pickle.dumps(vars(client)) == before, step


def other_data(data: UserRows) -> UserRows:
    """Other items for the same users."""
    users = {}
    for u, row in zip(data.ids.tolist(), data.train.tolists(), strict=True):
        train = sorted({(7 * item + u + 3) % 20 for item in row} - set(row)) or [(row[0] + 1) % 20]
        users[u] = (train, [], [])
    return block_data(users)


DATA = block_data({2: ([0, 1, 2], [3], [4]), 5: ([5, 6], [], []), 9: ([7, 8, 9, 10], [11], [12])})
KEY = Key.from_seed(2).fold(DATA.ids)


def ended(method, backbone, data, blocks=1):
    """A block's end, with fixed parameters and some data: what the client keeps."""
    client = ContinualClient(settings(method, backbone))
    mine = client.enrol(DATA, KEY)
    mine = replace(mine, blocks=torch.full((3,), blocks))
    table = Key.from_seed(3).fold(torch.arange(20)).normal(4, dtype=torch.float64)
    _, mine = client.start_block(LookBack(1, table, table, table), mine, data, KEY)
    memory = client.retention.before_training(mine, ItemTable(table), data, KEY)
    mine = replace(mine, memory=memory)
    _, mine = client.end_block(EndedBlock(table, 0), mine, data, KEY)
    return client, table, mine


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", KEPT)
def test_what_stays_is_made_of_parameters(method, backbone):
    """With the same parameters, other interactions leave the same profile; but for RLP2."""
    _, _, mine = ended(method, backbone, DATA)
    _, _, other = ended(method, backbone, other_data(DATA))
    assert set(mine.memory) == KEPT[method]
    assert torch.equal(mine.blocks, torch.full((3,), 2))
    same = {
        path: torch.equal(value, dict(tree.tensors(other))[path])
        for path, value in tree.tensors(mine)
    }
    different = {path for path, equal in same.items() if not equal}
    if method == "rlp2":
        assert {"memory.items", "memory.predicted"} <= different
        different -= {"memory.items", "memory.label", "memory.predicted"}
    assert different == set()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_error_memory_is_written_over(backbone):
    """After a block RLP2 holds that block's positives and sampled negatives, nothing earlier."""
    client, table, mine = ended("rlp2", backbone, DATA)
    for user, train in enumerate(DATA.train.tolists()):
        check_memory(mine.memory, user, train)
    after = block_data({u: ([u, u + 5], [], []) for u in (2, 5, 9)})
    _, again = client.end_block(EndedBlock(table, 0), mine, after, KEY.fold("later"))
    _, fresh = client.end_block(
        EndedBlock(table, 0),
        replace(mine, memory=client.retention.empty(mine.params)),
        after,
        KEY.fold("later"),
    )
    for name, value in again.memory.items():
        assert torch.equal(value, fresh.memory[name])
    check_memory(again.memory, 1, [5, 10])


def check_memory(memory, user, train):
    used = memory["items"][user] >= 0
    positive = used & (memory["label"][user] == 1)
    assert sorted(memory["items"][user][positive].tolist()) == sorted(train)
    negative = memory["items"][user][used & ~positive].tolist()
    assert len(negative) == len(train)
    assert not set(negative) & set(train)


def test_the_oldest_samples_leave_a_full_error_memory():
    data = block_data({1: (list(range(15)), [], [])})  # in order of time
    client = ContinualClient(settings("rlp2"))  # capacity 12: six of each label
    key = Key.from_seed(0).fold(data.ids)
    mine = client.enrol(data, key)
    table = Key.from_seed(3).fold(torch.arange(20)).normal(4, dtype=torch.float64)
    _, mine = client.end_block(EndedBlock(table, 0), mine, data, key)
    positive = mine.memory["label"][0] == 1
    assert sorted(mine.memory["items"][0][positive].tolist()) == list(range(9, 15))
    assert set(mine.memory["items"][0][~positive].tolist()) <= set(range(15, 20))
