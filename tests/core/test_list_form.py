"""Clients that differ in shape: the list form, and messages that differ from client to client."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from tests.in_process import cohort_in_process
from torch import Tensor

from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.client import Client
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import (
    Down,
    ListStep,
    PerClient,
    Private,
    Reveals,
    Up,
    carries,
    leaves,
)
from coterie.core.protocol.uploads import Flag, Sum
from coterie.core.run.recording import Recording
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import FactoredRows
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Ask(Down):
    factor: Tensor = carries("what to multiply with")  # ()
    lost: tuple[int, ...] = carries("clients whose training diverges", default=())


@dataclass(frozen=True)
class Answer(Up):
    total: Tensor = leaves("sum", reveals=Reveals.MEASUREMENT)
    own: Tensor = leaves("values", reveals=Reveals.PARAMETERS)
    lost: Tensor = leaves("whether to leave it out", reveals=Reveals.NOTHING, expected=Flag())


@dataclass(frozen=True)
class Width(Private):
    weights: Tensor  # (width of the client,)


@dataclass(frozen=True)
class OwnWidth:
    id: int
    width: int


@dataclass(frozen=True)
class Widths:
    ids: Tensor
    widths: Ragged

    def __getitem__(self, place: int) -> OwnWidth:
        return OwnWidth(int(self.ids[place]), int(self.widths.values[place]))

    def take(self, index: Tensor) -> "Widths":
        return Widths(self.ids[index], self.widths.take(index))


GROW = ListStep("grow", Ask, Answer, diverged="lost")


class WideClient(Client[Width, OwnWidth]):
    """Each client has a private vector of its own length."""

    form = "list"

    def enrol(self, data: OwnWidth, key: Key) -> Width:
        return Width(torch.ones(data.width))

    @GROW
    def grow(self, down: Ask, mine: Width, data: OwnWidth, key: Key) -> tuple[Answer, Width]:
        weights = mine.weights * down.factor
        lost = torch.tensor(data.id in down.lost)
        return Answer(weights.sum(), weights, lost), Width(weights)


def cohort(store=None, client=None):
    data = Widths(torch.tensor([2, 5, 9]), Ragged.from_lists([[3], [1], [4]]))
    return cohort_in_process(
        client or WideClient(),
        data,
        PrivateStore(stacked=False) if store is None else store,
        Key.from_seed(0),
        (0, 0),
        Ledger(),
        Journal(),
    )


@pytest.mark.parametrize("lost", [[2], [9], [2, 5], [2, 5, 9], []])
def test_who_diverged_keeps_its_new_state_and_its_answer_is_left_out(lost):
    asked = cohort()
    asked.enrol()
    own = {2: 6.0, 5: 2.0, 9: 8.0}  # answers, by client
    replies = asked.ask(GROW, Ask(torch.tensor(2.0), tuple(lost)))
    assert replies.ids.tolist() == [c for c in own if c not in lost]
    assert [float(up.total) for up in replies.ups.values()] == [
        own[c] for c in own if c not in lost
    ]
    assert replies.failed == dict.fromkeys(lost, "its training diverged")
    for place, client in enumerate(own):
        kept = asked.store.take(asked.ids[place : place + 1])
        assert float(kept.weights.sum()) == own[client]


def test_clients_of_different_shapes_answer_as_a_list():
    asked = cohort()
    asked.enrol()
    replies = asked.ask(GROW, Ask(torch.tensor(2.0)))
    assert [answer.own.shape for answer in replies.ups.values()] == [(3,), (1,), (4,)]
    assert [float(answer.total) for answer in replies.ups.values()] == [6.0, 2.0, 8.0]
    assert asked.store.take(torch.tensor([9])).weights.tolist() == [2.0] * 4


def test_one_client_of_the_list_form_is_recorded_and_nothing_else_changes():
    asked = cohort()
    asked.enrol()
    recorded = Recording.of(asked.exchange, 9)
    watched = dataclasses.replace(asked, exchange=recorded)
    replies = watched.ask(GROW, Ask(torch.tensor(3.0), (2,)))
    assert [float(up.total) for up in replies.ups.values()] == [3.0, 12.0]
    assert recorded.answered == {2, 5, 9}
    [turn] = recorded.turns
    assert (turn.step, turn.refused, float(turn.received.factor)) == ("grow", "", 3.0)
    assert turn.before.weights.tolist() == [1.0] * 4
    assert turn.after.weights.tolist() == recorded.mine().weights.tolist() == [3.0] * 4
    assert float(turn.made.total) == float(turn.sent.total) == 12.0


def test_each_block_has_its_own_places():
    """The data of a later block are of other clients, in another order."""
    first = Widths(torch.tensor([2, 5, 9]), Ragged.from_lists([[3], [1], [4]]))
    second = Widths(torch.tensor([9, 7, 5]), Ragged.from_lists([[40], [20], [10]]))
    exchange = InProcess(WideClient(), [first, second], Key.from_seed(0).fold)
    for block, widths in ((0, {5: 1, 9: 4}), (1, {5: 10, 7: 20, 9: 40}), (0, {2: 3})):
        found = {id: exchange.data_of(torch.tensor([id]), block) for id in widths}
        assert {id: (data.id, data.width) for id, data in found.items()} == {
            id: (id, width) for id, width in widths.items()
        }


def test_messages_may_differ_from_client_to_client():
    """They are found by id: who is not asked may be among them, in any order."""
    factors = {9: 100.0, 4: 7.0, 2: 1.0, 5: 10.0}
    message = {client: Ask(torch.tensor(factor)) for client, factor in factors.items()}
    asked = cohort()
    asked.enrol()
    replies = asked.ask(GROW, PerClient(message))
    assert [float(answer.total) for answer in replies.ups.values()] == [3.0, 10.0, 400.0]
    assert asked.ledger.bytes("down") == 3 * 4


def test_the_list_form_folds_and_survives_a_checkpoint():
    asked = cohort()
    asked.enrol()

    class OnlyTotals(WideClient):
        @GROW
        def grow(self, down: Ask, mine: Width, data: OwnWidth, key: Key) -> tuple[Answer, Width]:
            up, new = super().grow(down, mine, data, key)
            return Answer(up.total, up.own.sum(), up.lost), new

    folding = cohort(asked.store, OnlyTotals())
    assert float(folding.ask(GROW, Ask(torch.tensor(2.0)), reduce=Sum()).total.total) == 16.0
    restored = PrivateStore(stacked=False)
    restored.load_plain(asked.store.to_plain(), Width(torch.zeros(1)))
    assert restored.take(torch.tensor([2])).weights.tolist() == [2.0] * 3


def test_kept_rows_of_several_chunks_are_those_of_one():
    rows = FactoredRows(torch.tensor([0, 1, 2, 0]), torch.randn(4, 5), torch.randn(4, 3), 3)
    first, rest = rows.take(torch.tensor([0])), rows.take(torch.tensor([1, 2]))
    for form in (lambda r: r, lambda r: r.wire()):
        both = tree.concatenate({"items": form(first)}, {"items": form(rest)})["items"]
        torch.testing.assert_close(both.dense(), rows.dense())


class FaintClient(WideClient):
    """The client with the widest vector answers NaN."""

    @GROW
    def grow(self, down: Ask, mine: Width, data: OwnWidth, key: Key) -> tuple[Answer, Width]:
        value = torch.nan if mine.weights.shape[0] == 4 else 1.0
        weights = mine.weights * value
        lost = torch.tensor(data.id in down.lost)
        return Answer(weights.sum(), weights, lost), Width(weights)


def test_a_client_that_is_refused_drops_out_of_the_list():
    asked = cohort(client=FaintClient())
    asked.enrol()
    replies = asked.ask(GROW, Ask(torch.tensor(2.0)))
    assert replies.ids.tolist() == [2, 5]
    assert list(replies.failed) == [9]
    assert list(replies.ups) == [2, 5]
    assert asked.store.take(torch.tensor([9])).weights.tolist() == [1.0] * 4


def test_a_round_without_newcomers_enrols_nobody():
    asked = cohort()
    assert asked.enrol().tolist() == [2, 5, 9]
    assert asked.enrol().tolist() == []
    assert len(asked.store) == 3
