"""Who sent what to whom in a round: parties of the ledger, and what the server passes on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.core.liars import Liars, ListLiars, Model, Own
from tests.core.relays import FIT, Fits, Organisation, Others
from torch import Tensor

from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.federation.ledger import Crossing, Ledger
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Aligned, Down, ListStep, PerClient, Step, carries
from coterie.core.tensors.keys import Key

IDS = torch.tensor([2, 5, 9])
DOWN = Model({"w": torch.zeros(20, 8)})
MODEL = 20 * 8 * 4


@dataclass(frozen=True)
class Residuals(Down):
    """What another client has sent, and how often."""

    values: Tensor = carries("the others' residuals", relays=True)  # (n,)
    weight: Tensor = carries("the server's own weight")  # ()


def asked(client, down, step=None, ledger=None, chunk=None):
    ledger = ledger or Ledger()
    exchange = InProcess(client, {0: Own(IDS)}, Key.from_seed(0).fold, chunk=chunk)
    cohort = ExchangeCohort(exchange, IDS, (0, 3), ledger, Journal())
    cohort.enrol()
    ledger.begin_round(0, 3)
    cohort.ask(step or client.steps()["update"], down)
    return ledger


def test_organisations_are_parties_of_their_own():
    ledger = asked(ListLiars(0, None), DOWN)
    down = {
        Crossing(0, 3, "update", "down", "weights.w", "server", str(c)): [1, MODEL]
        for c in IDS.tolist()
    }
    up = {
        Crossing(0, 3, "update", "up", name, str(c), "server"): [1, size]
        for c in IDS.tolist()
        for name, size in (("change", MODEL), ("samples", 8), ("loss", 4))
    }
    assert dict(ledger.of_round) == down | up


def test_users_are_the_clients_however_they_are_stacked():
    one, each = (asked(Liars(0, None), DOWN, chunk=chunk) for chunk in (None, 1))
    assert dict(one.of_round) == dict(each.of_round)
    crossing = Crossing(0, 3, "update", "up", "change", "clients", "server")
    assert one.of_round[crossing] == [3, 3 * MODEL]
    assert {row["relay"] for row in one.parties()} == {""}


@pytest.mark.parametrize("chunk", [None, 2, 1])
def test_messages_of_ones_own_are_counted_once_for_each_client(chunk):
    each = {"w": torch.zeros(3, 20, 8)}
    whole = asked(Liars(0, None), Aligned(IDS, Model(each)), chunk=chunk)
    crossing = Crossing(0, 3, "update", "down", "weights.w", "server", "clients")
    assert whole.of_round[crossing] == [3, 3 * MODEL]
    other = asked(ListLiars(0, None), PerClient({c: DOWN for c in IDS.tolist()}))
    assert other.bytes("down") == whole.bytes("down")


class Listening(ListLiars):
    """Organisations that are told the residuals of others."""

    @ListStep("listen", Residuals, None)
    def listen(self, down, mine, data, key):
        return None, None


def test_what_the_server_passes_on_came_from_other_clients():
    message = PerClient({c: Residuals(torch.zeros(c), torch.tensor(0.5)) for c in IDS.tolist()})
    ledger = asked(Listening(0, None), message, Listening.steps()["listen"])
    assert dict(ledger.of_round) == {
        Crossing(0, 3, "listen", "down", "values", "clients", str(c), "server"): [1, 4 * c]
        for c in IDS.tolist()
    } | {Crossing(0, 3, "listen", "down", "weight", "server", str(c)): [1, 4] for c in IDS.tolist()}
    assert ledger.bytes("down") == 4 * int(IDS.sum()) + 12


def test_totals_of_each_party_go_on_and_come_back():
    ledger = asked(ListLiars(0, None), DOWN)
    once = ledger.by_party.rows()
    sent = {row["party"]: row["bytes"] for row in once if row["field"] == "change"}
    assert sent == {str(c): MODEL for c in IDS.tolist()}
    assert {row["field"] for row in once if row["direction"] == "down"} == {"weights"}
    mark = ledger.mark()
    asked(ListLiars(0, None), DOWN, ledger=ledger)
    assert [row["bytes"] for row in ledger.by_party.rows()] == [2 * row["bytes"] for row in once]
    for way in ("up", "down"):
        rows = [row for row in ledger.by_party.rows() if row["direction"] == way]
        assert sum(row["bytes"] for row in rows) == ledger.bytes(way)
    ledger.go_back(mark)
    assert ledger.by_party.rows() == once
    other = Ledger()
    other.by_party.load(None)  # of a checkpoint that does not have it
    asked(ListLiars(0, None), DOWN, ledger=other)
    assert other.by_party.rows() is None


@dataclass(frozen=True)
class Named(Down):
    """What others have sent, by their numbers."""

    values: dict[str, Tensor] = carries("residuals", relays=True)
    own: dict[str, Tensor] = carries("the server's", default=None)


class Told(ListLiars):
    """Organisations that are told who sent what."""

    @ListStep("listen", Named, None)
    def listen(self, down, mine, data, key):
        return None, None


def test_the_keys_of_what_is_passed_on_are_its_senders():
    others = {c: [one for one in IDS.tolist() if one != c] for c in IDS.tolist()}
    message = PerClient(
        {
            c: Named({str(one): torch.zeros(one) for one in who}, {"7": torch.zeros(2)})
            for c, who in others.items()
        }
    )
    ledger = asked(Told(0, None), message, Told.steps()["listen"])
    assert dict(ledger.of_round) == {
        Crossing(0, 3, "listen", "down", "values", str(one), str(c), "server"): [1, 4 * one]
        for c, who in others.items()
        for one in who
    } | {Crossing(0, 3, "listen", "down", "own.7", "server", str(c)): [1, 8] for c in IDS.tolist()}
    assert {row["field"] for row in ledger.rows()} == {"values", "own.7"}
    wrong = Named({"w": torch.zeros(2)})
    with pytest.raises(TypeError, match=r"Named\.values is passed on.*numbers, not w"):
        asked(Told(0, None), wrong, Told.steps()["listen"])


class Wrong(Organisation):
    """Names as a receiver what is nobody."""

    @FIT
    def fit(self, down, mine, data, key):
        up, mine = super().fit(down, mine, data, key)
        return (Fits({"all": torch.ones(2)}) if data.id == 5 else up), mine


def test_the_keys_of_an_upload_that_is_passed_on_are_its_receivers():
    down = Others({str(c): torch.ones(c) for c in IDS.tolist()}, torch.tensor(1.0))
    ledger = asked(Organisation(), down, FIT)
    up = {crossing: n for crossing, n in ledger.of_round.items() if crossing.direction == "up"}
    assert up == {
        Crossing(0, 3, "fit", "up", "fits", str(c), str(to), "server"): [1, 24]
        for c in IDS.tolist()
        for to in IDS.tolist()
    }


def test_a_receiver_that_is_no_client_is_refused():
    down = Others({str(c): torch.ones(c) for c in IDS.tolist()}, torch.tensor(1.0))
    exchange = InProcess(Wrong(), {0: Own(IDS)}, Key.from_seed(0).fold)
    cohort = ExchangeCohort(exchange, IDS, (0, 3), Ledger(), Journal())
    cohort.enrol()
    replies = cohort.ask(FIT, down)
    assert list(replies.ups) == [2, 9]
    assert replies.failed == {5: "upload 'fits' is to be passed on to what is no client's number"}
    assert {c.sender for c in cohort.ledger.of_round if c.direction == "up"} == {"2", "9"}


def test_what_opens_a_block_belongs_to_its_first_round():
    ledger, opening = Ledger(), []
    for number in (0, 1, 2):
        ledger.begin_round(4, number)
        ledger.up("step", DOWN, 1)
        opening.append([(c.block, c.round) for c in ledger.of_round])
    assert opening == [[(4, 0)], [(4, 0), (4, 1)], [(4, 2)]]


def test_a_round_begins_anew_and_the_totals_go_on():
    ledger = asked(Liars(0, None), DOWN)
    before = dict(ledger.of_round)
    asked(Liars(0, None), DOWN, ledger=ledger)
    assert dict(ledger.of_round) == before
    assert ledger.bytes("up") == 2 * sum(
        size for crossing, (_, size) in before.items() if crossing.receiver == "server"
    )
    assert isinstance(Liars.steps()["update"], Step)
