"""What stands in a message is seen, and what cannot travel is refused when the class is made."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.core.peers import (
    KEEP,
    SEND,
    STACKED,
    Call,
    Cell,
    ListPeers,
    Parts,
    StackedPeers,
    cohort_of,
)
from tests.core.peers import Models as PeerModels
from torch import Tensor

from coterie.core.federation.store import PrivateStore
from coterie.core.privacy.check import assert_no_shared_storage
from coterie.core.privacy.noise import Clip, GaussianNoise
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import (
    Aligned,
    Down,
    ListStep,
    PerClient,
    Private,
    Step,
    Up,
    carries,
)
from coterie.core.protocol.uploads import Sum
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.core.wire.annotations import restore
from coterie.core.wire.codec import Header, ProtocolError, decode, encode

HEADER = Header("send", (0, 1, 0), 3)


def test_a_nan_in_a_list_is_refused_by_name():
    replies = cohort_of(ListPeers()).ask(SEND, Call("nan"))
    assert list(replies.ups) == [2, 5]
    assert replies.failed == {9: "NaN or infinity in upload 'parts.1'"}


def test_a_nan_in_rows_is_blamed_on_the_client_that_has_it():
    """The last row is the shortest: cut in equal parts, its NaN would be somebody else's."""
    replies = cohort_of(StackedPeers()).ask(STACKED, Call("nan"))
    assert replies.failed == {9: "NaN or infinity in upload 'rows'"}
    assert replies.ids.tolist() == [2, 5]
    assert replies.up.rows.lengths.tolist() == [3, 3]


def test_the_bytes_of_a_list_are_counted():
    asked = cohort_of(ListPeers())
    asked.ask(SEND, Call())
    assert {row["field"]: row["bytes"] for row in asked.ledger.rows()} == {"parts": 3 * 4 * (3 + 2)}
    stacked = cohort_of(StackedPeers())
    stacked.ask(STACKED, Call())
    found = {row["field"]: row["bytes"] for row in stacked.ledger.rows()}
    assert found == {"parts": 3 * 2 * 4, "rows": 7 * 4 + 3 * 8}


def test_private_state_does_not_change_through_a_list():
    asked = cohort_of(ListPeers())
    asked.ask(KEEP, Call("append"))
    assert [len(asked.store.take(asked.ids[c : c + 1]).models) for c in range(3)] == [1, 1, 1]


def test_writing_into_private_state_of_the_list_form_is_an_error():
    """Nothing is copied there, so a step that writes would change what it must not."""
    with pytest.raises(TypeError, match="step 'keep' wrote into private state"):
        cohort_of(ListPeers()).ask(KEEP, Call("write"))


def test_nothing_is_copied_in_the_list_form():
    asked = cohort_of(ListPeers())
    first = asked.store.take(asked.ids[:1]).models[0]
    asked.ask(KEEP, Call())
    kept = asked.store.take(asked.ids[:1]).models
    assert kept[0] is first
    assert len(kept) == 2


def test_private_state_that_has_grown_is_resumed():
    asked = cohort_of(ListPeers())
    for _ in range(3):
        asked.ask(KEEP, Call())
    again: PrivateStore = PrivateStore(stacked=False)
    again.load_plain(asked.store.to_plain(), ListPeers().enrol(2, Key.from_seed(0)))
    kept = again.take(torch.tensor([9]))
    assert [model.tolist() for model in kept.models] == [[0.0, 0.0]] + [[1.0, 1.0]] * 3


@dataclass(frozen=True)
class Growing:
    """A server's state that begins with nothing."""

    cells: dict[str, Cell]
    found: Cell | None
    rows: Ragged | None
    names: tuple[str, ...]
    fixed: dict[str, Tensor]


def test_a_server_state_that_has_grown_is_resumed():
    fixed = {"w": torch.zeros(1)}
    grown = Growing(
        {"0": Cell(torch.ones(2))},
        Cell(torch.ones(1), "x"),
        Ragged.from_lists([[1]]),
        ("a",),
        fixed,
    )
    began = Growing({}, None, None, (), fixed)
    again = restore(began, tree.to_plain(grown))
    assert isinstance(again.cells["0"], Cell)
    assert again.found.name == "x"
    assert again.rows.tolists() == [[1]]
    assert again.names == ("a",)
    with pytest.raises(KeyError, match="'v' is in one of the two only"):
        restore(began, tree.to_plain(replace(grown, fixed={"v": torch.zeros(1)})))


def test_stacked_private_state_grows_for_all_clients_or_for_none():
    store: PrivateStore = PrivateStore()
    store.enrol(torch.tensor([4, 7]), PeerModels([torch.zeros(2, 1)]))
    grown = PeerModels([torch.ones(2, 1), torch.tensor([[7.0], [4.0]])])
    with pytest.raises(TypeError, match="for all clients at once only"):
        store.commit(torch.tensor([7]), tree.take(grown, torch.tensor([0])))
    store.commit(torch.tensor([7, 4]), grown)
    assert store.take(torch.tensor([4, 7])).models[1].tolist() == [[4.0], [7.0]]


def test_shared_storage_is_found_in_a_list():
    mine = PeerModels([torch.zeros(2)])
    with pytest.raises(AssertionError, match=r"upload 'parts.0' shares memory .* 'models.0'"):
        assert_no_shared_storage(Parts([mine.models[0][1:]], None), mine)


def test_clipping_and_noise_reach_into_lists():
    asked = cohort_of(ListPeers())
    plain = asked.ask(SEND, Call()).ups[2]
    layers = (Clip(1.0), GaussianNoise(0.1))
    noisy = tree.clone(plain)
    for layer in layers:
        noisy = layer(tree.as_stack(noisy), Key.from_seed(3).fold(torch.tensor([2])))
        noisy = tree.as_one(noisy)
    assert [part.shape for part in noisy.parts] == [(3,), (2,)]
    assert not torch.equal(noisy.parts[0], plain.parts[0])
    assert float(torch.cat(noisy.parts).norm()) < 1.0 + 5 * 0.1 * 5**0.5


def test_folding_a_list_form_sums_over_clients_not_over_values():
    replies = cohort_of(ListPeers()).ask(SEND, Call(), reduce=Sum())
    assert [part.tolist() for part in replies.total.parts] == [[0.0] * 3, [3.0] * 2]


def test_lists_tuples_and_dicts_of_messages_travel_both_ways():
    down = Call("fine", {"a.b": Cell(torch.ones(2)), "": Cell(torch.zeros(0), "x")}, (Tensor(), 3))
    back, header = decode(encode(down, HEADER), Call)
    assert header == HEADER
    assert list(back.cells) == ["a.b", ""]
    assert back.cells[""].name == "x"
    assert torch.equal(back.cells["a.b"].values, torch.ones(2))
    assert back.pair[1] == 3
    up = Parts([torch.ones(1), torch.zeros(2, 0)], Ragged.from_lists([[1], []]))
    again, _ = decode(encode(up, HEADER), Parts)
    assert isinstance(again.parts, list)
    assert [part.shape for part in again.parts] == [(1,), (2, 0)]
    assert decode(encode(Parts([], None), HEADER), Parts)[0].parts == []


@pytest.mark.parametrize("length", [-1, 1, 3, 10**12, True, "2"])
def test_a_forged_length_of_a_list_is_refused(length, monkeypatch):
    real = len
    monkeypatch.setattr(
        "coterie.core.wire.codec.len",
        lambda node: length if isinstance(node, list) and real(node) == 2 else real(node),
        raising=False,
    )
    data = encode(Parts([torch.ones(1), torch.ones(1)], None), HEADER)
    with pytest.raises(ProtocolError):
        decode(data, Parts)


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (set[int], r"set\[int\] cannot travel"),
        (Any, "Any cannot travel"),
        (dict, "does not say what it holds"),
        (dict[int, Tensor], "does not say what it holds under which names"),
        (list[set[str]], r"set\[str\] cannot travel"),
        (Tensor | str, "several types"),
        (dict[str, complex], "complex cannot travel"),
    ],
)
def test_what_cannot_travel_is_refused_when_the_class_is_made(hint, why):
    body = {"__annotations__": {"field": hint}, "field": carries("x")}
    with pytest.raises(TypeError, match=rf"Bad\.field: .*{why}.*What may travel"):
        type("Bad", (Down,), dict(body))
    with pytest.raises(TypeError, match=r"Bad\.field"):
        type("Bad", (Private,), {"__annotations__": {"field": hint}})


def test_a_foreign_object_in_a_message_is_refused_and_not_passed_over():
    message = Parts([torch.ones(1), {1, 2}], None)  # type: ignore[list-item]
    for see in (tree.clone, lambda m: list(tree.leaves(m)), tree.to_plain):
        with pytest.raises(TypeError, match="a set cannot stand in a tree of tensors"):
            see(message)


def test_messages_of_the_stacked_form_are_found_by_id():
    down = Aligned(torch.tensor([2, 4, 9]), {"a": torch.tensor([2.0, 4.0, 9.0])})
    assert down.of(torch.tensor([9, 2]))["a"].tolist() == [9.0, 2.0]
    with pytest.raises(KeyError, match="no message for some"):
        down.of(torch.tensor([5]))


def test_a_client_without_the_step_is_refused():
    class Deaf(Client[PeerModels, None]):
        pass

    whole = cohort_of(StackedPeers())
    asked = whole.holding(whole.data, Deaf())
    with pytest.raises(TypeError, match=r"Deaf does not serve Step\('send'.*the steps none"):
        asked.ask(STACKED, Call())
    with pytest.raises(TypeError, match="does not serve"):
        cohort_of(ListPeers()).ask(ListStep("send", Call, None), PerClient({}))


def test_a_step_of_the_other_form_is_refused_when_the_client_is_made():
    with pytest.raises(TypeError, match="Mixed is of the list form"):
        type("Mixed", (Client,), {"form": "list", "send": StackedPeers.send})


def test_a_step_is_bound_to_the_method_of_its_name():
    with pytest.raises(TypeError, match="step 'send' is bound to a method called 'sned'"):

        @Step("send", Call, Parts)
        def sned(self, down, mine, data, key):
            return None, None


def test_messages_go_the_way_they_are_made_for():
    with pytest.raises(TypeError, match="Parts is no Down"):
        Step("send", Parts, None)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="Call is no Up"):
        Step("send", None, Call)  # type: ignore[type-var]
    assert issubclass(Parts, Up)
