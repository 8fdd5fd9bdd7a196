"""Private state that gets room with the first clients that need it, and from older checkpoints."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from coterie.core.federation import in_process
from coterie.core.federation.exchange import Request
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Private, Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Memory(Private):
    taste: Tensor
    listed: Tensor
    history: Ragged


def state(*clients: int, places: int = 0) -> Memory:
    """What clients hold: their number, as often as there are places for it."""
    ids = torch.tensor(clients)
    return Memory(
        ids[:, None].double().expand(-1, 2).clone(),
        ids[:, None].int().expand(-1, places).clone(),
        Ragged.from_lists([[c] * c for c in clients]),
    )


def test_the_first_who_write_make_room_for_all_and_others_have_zeros():
    store: PrivateStore[Memory] = PrivateStore()
    store.enrol(torch.tensor([1, 2]), state(1, 2))
    store.commit(torch.tensor([2]), state(2, places=3))
    store.enrol(torch.tensor([5]), state(5))  # a newcomer brings no room
    found = store.take(torch.tensor([1, 2, 5]))
    assert found.listed.tolist() == [[0, 0, 0], [2, 2, 2], [0, 0, 0]]
    assert found.listed.dtype == torch.int32
    store.commit(torch.tensor([5, 2]), state(5, 2))  # without room is forgotten
    assert store.take(torch.tensor([1, 2, 5])).listed.tolist() == [[0] * 3] * 3
    assert store.take(torch.tensor([5])).history.tolists() == [[5] * 5]


def test_room_that_is_there_keeps_its_width():
    with pytest.raises(RuntimeError):
        tree.put(state(1, 2, places=3), torch.tensor([0]), state(1, places=2))
    with pytest.raises(RuntimeError):
        tree.concatenate(state(1, places=3), state(1, places=2))


def test_many_stacks_are_joined_in_order():
    parts = [state(3), state(1, 4, places=2), state(2)]
    whole = tree.concatenate(*parts)
    assert whole.taste[:, 0].tolist() == [3, 1, 4, 2]
    assert whole.listed.tolist() == [[0, 0], [1, 1], [4, 4], [0, 0]]
    assert whole.history.tolists() == [[3] * 3, [1], [4] * 4, [2] * 2]


def test_a_checkpoint_with_wider_numbers_and_room_goes_on():
    """As those that were written before item numbers took 4 bytes."""
    store: PrivateStore[Memory] = PrivateStore()
    store.enrol(torch.tensor([1, 2]), state(1, 2, places=3))
    plain = store.to_plain()
    plain["rows"]["listed"] = plain["rows"]["listed"].long()
    back: PrivateStore[Memory] = PrivateStore()
    back.load_plain(plain, state(1))
    back.commit(torch.tensor([1]), state(7, places=3))
    assert back.take(torch.tensor([1, 2])).listed.tolist() == [[7] * 3, [2] * 3]
    assert back.take(torch.tensor([1])).listed.dtype == torch.int32
    plain["rows"]["taste"] = plain["rows"]["taste"][:, :1]
    with pytest.raises(KeyError, match="'taste' has the shape"):
        PrivateStore().load_plain(plain, state(1))


@dataclass(frozen=True)
class Ids:
    ids: Tensor

    def take(self, index: Tensor) -> "Ids":
        return Ids(self.ids[index])


class Newcomer(Client[Memory, Ids]):
    def enrol(self, data: Ids, key: Key) -> Memory:
        made = state(*data.ids.tolist())
        return Memory(key.uniform(2, dtype=torch.float64), made.listed, made.history)


@pytest.mark.parametrize("at_once", [1, 3, 7, 8])
def test_newcomers_are_the_same_however_many_at_once(at_once, monkeypatch):
    ids, key = torch.tensor([0, 2, 3, 4, 5, 8, 9]), Key.from_seed(1)
    whole = Newcomer().enrol(Ids(ids), key.fold(ids).fold("enrol"))
    monkeypatch.setattr(in_process, "ENROLLED_AT_ONCE", at_once)
    clients = InProcess(Newcomer(), [Ids(ids)], key.fold)
    assert clients.enrol(ids[[1]], 0).tolist() == [2]
    assert clients.enrol(ids, 0).tolist() == [0, 3, 4, 5, 8, 9]
    found = clients.store.take(ids)
    assert torch.equal(found.taste, whole.taste)
    assert found.history.tolists() == whole.history.tolists()


# What did not change is not written back.


ADD = Step("add", None, None)


@dataclass(frozen=True)
class Pair(Private):
    left: Tensor
    right: Tensor


def pairs() -> PrivateStore[Pair]:
    store: PrivateStore[Pair] = PrivateStore()
    store.enrol(torch.tensor([1, 2, 5]), Pair(torch.arange(3.0)[:, None], -torch.ones(3, 1)))
    return store


def test_what_stands_where_it_was_taken_is_not_written_again():
    store, ids = pairs(), torch.tensor([5, 1])
    was = store.take(ids)
    store._enrolled().right[:] = 7.0  # to be seen whether it is written
    store.commit(ids, Pair(was.left + 1, was.right), was)
    found = store.take(torch.tensor([1, 2, 5]))
    assert found.left.flatten().tolist() == [1, 1, 3]
    assert found.right.flatten().tolist() == [7] * 3
    store.commit(ids, Pair(was.left, was.right))
    assert store.take(ids).right.flatten().tolist() == [-1, -1]


def test_what_changed_its_place_is_written():
    store, ids = pairs(), torch.tensor([5, 1])
    was = store.take(ids)
    store.commit(ids, Pair(was.right, was.left), was)
    assert store.take(ids).left.flatten().tolist() == [-1, -1]
    assert store.take(ids).right.flatten().tolist() == [2, 0]


class InPlace(Client[Pair, Ids]):
    """Writes into what it is given."""

    def enrol(self, data: Ids, key: Key) -> Pair:
        return Pair(data.ids[:, None].double(), data.ids[:, None].double())

    @ADD
    def add(self, down: None, mine: Pair, data: Ids, key: Key) -> tuple[None, Pair]:
        mine.left.add_(10)
        return None, mine


def test_what_is_written_in_place_is_kept():
    ids = torch.tensor([3, 4])
    clients = InProcess(InPlace(), [Ids(ids)], Key.from_seed(1).fold)
    clients.enrol(ids, 0)
    list(clients.ask(Request(ADD, None, ids, (0, 1), 0)))
    found = clients.store.take(ids)
    assert found.left.flatten().tolist() == [13, 14]
    assert found.right.flatten().tolist() == [3, 4]
