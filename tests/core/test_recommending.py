"""Recommendations of a trained run: alone, with peers asked for their part, and for someone new."""

from dataclasses import dataclass

import pytest
import torch
from tests.core.scored import scores_of_user
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.protocol.client import Client, RecommendsItems
from coterie.core.protocol.messages import Down, Private, Reveals, Step, Up, carries, leaves
from coterie.core.protocol.server import Server, ServesItems
from coterie.core.run.driver import FederatedRun
from coterie.core.run.scoring import scores_of_newcomer


@dataclass(frozen=True)
class Query(Down):
    """Which user is asked about."""

    user: int = carries("number of the user")


@dataclass(frozen=True)
class Opinion(Up):
    """A client's part of the scores."""

    scores: Tensor = leaves("scores", reveals=Reveals.MEASUREMENT, depends_on={"taste"})


@dataclass(frozen=True)
class Peers(Down):
    """What all clients say together."""

    scores: Tensor = carries("scores")


@dataclass(frozen=True)
class Taste(Private):
    """Scores of a client's own."""

    taste: Tensor


@dataclass(frozen=True)
class Data:
    """Clients without data."""

    ids: Tensor

    def take(self, index):
        return Data(self.ids[index])


OPINION = Step("opinion", Query, Opinion)


class Assisting(Client[Taste, Data], RecommendsItems[Taste]):
    """A client whose taste is for the item of its own number."""

    def enrol(self, data, key):
        return Taste(torch.nn.functional.one_hot(data.ids, 4).double())

    @OPINION
    def opinion(self, down: Query, mine: Taste, data: Data, key) -> tuple[Opinion, None]:
        return Opinion(mine.taste * down.user), None

    def predict(self, down, mine):
        return 10 * mine.taste + down.scores

    def adapt(self, down, history, key):
        return Taste(torch.nn.functional.one_hot(history.values[:1], 4).double())


class Coordinator(Server[Query], ServesItems[Query]):
    """A server that asks everybody before it answers."""

    def begin(self, key):
        return Query(0)

    def start_block(self, state, block, cohort, key):
        cohort.enrol()
        return state

    def round(self, state, cohort, key):
        return state

    def stop(self, state, history):
        return "end"

    def serve(self, state, user, cohort):
        found = cohort.ask(OPINION, Query(1 if user is None else user))
        return Peers(found.up.scores.sum(0))


@pytest.fixture
def trained():
    module = FederatedRun(Federation(Coordinator(), Assisting(), [Data(torch.arange(3))]))
    module.advance()
    return module


def test_a_prediction_asks_the_peers_and_what_they_say_is_counted(trained):
    before = trained.ledger.bytes("up")
    assert scores_of_user(trained, 2).tolist() == [[2.0, 2.0, 12.0, 0.0]]
    assert trained.ledger.bytes("up") - before == 3 * 4 * 8


def test_someone_new_is_fitted_and_served(trained):
    assert scores_of_newcomer(trained, torch.tensor([3])).tolist() == [[1.0, 1.0, 1.0, 10.0]]


def test_who_never_took_part_is_refused(trained):
    with pytest.raises(UserError, match="client 7 has not taken part"):
        scores_of_user(trained, 7)
