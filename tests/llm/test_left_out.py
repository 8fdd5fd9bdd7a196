"""Rows that no client of PPLR has are counted; what filters left out stays had by every account."""

import pytest
import torch

from coterie.core.data.interactions.interactions import Interactions, k_core
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.data.client_data import NOBODY, build
from coterie.llm.experiment import Experiment
from coterie.llm.settings import FederatedDataSettings, Settings


def low_left_out() -> Interactions:
    data = generate()
    return k_core(data.without(data.rating < 3, "rated below 3").renumbered(), 5)


@pytest.fixture(scope="module")
def data():
    return low_left_out()


def pairs(data):
    users, items = data.had()
    return {
        (data.user_names[user].partition("@")[0], data.user_names[user], data.item_names[item])
        for user, item in zip(users.tolist(), items.tolist(), strict=True)
    }


def test_every_account_of_a_user_has_had_what_filters_left_out(data):
    how = FederatedDataSettings(partition="shops", clients=3)
    opened = build(data, how, Key.from_seed(0)).interactions
    assert any("@" in name for name in opened.user_names)
    low = {(data.user_names[user], data.item_names[item]) for user, item in data.besides.tolist()}
    assert low
    accounts = {(name.partition("@")[0], name) for name in opened.user_names}
    bought = {
        (opened.user_names[user], opened.item_names[item])
        for user, item in zip(opened.user.tolist(), opened.item.tolist(), strict=True)
    }
    wanted = {(owner, name, item) for owner, name in accounts for who, item in low if who == owner}
    wanted |= {(name.partition("@")[0], name, item) for name, item in bought}
    assert pairs(opened) == wanted


def test_rows_without_a_client_are_counted(data):
    """Some rows stand there twice, and whoever comes late has nothing before the test."""
    again = data.take(torch.cat([torch.arange(len(data)), torch.arange(7)]))
    found = build(again, FederatedDataSettings(clients=3), Key.from_seed(0))
    repeated, late = found.left_out()
    distinct = {*zip(again.user.tolist(), again.item.tolist(), strict=True)}
    assert (repeated.rows, repeated.of) == (len(again) - len(distinct), len(again))
    users = [user for user in range(data.n_users) if int(found.client_of[user]) == NOBODY]
    alone = [len(found.split.test.tolists()[user]) for user in users]
    assert late.rows > 0
    assert (late.rows, late.users) == (sum(alone), len(users))


def test_a_history_is_read_in_its_order():
    """The last items of a history are the newest: another order, other scores."""
    experiment = Experiment(Settings())
    asked = []
    experiment._score = lambda module, client, history: asked.append(history.tolists())
    most = experiment.settings.data.max_history
    items = torch.arange(3 * most).flip(0)
    experiment.scores_for_newcomer(None, items)
    assert asked == [[items[-most:].tolist()]]


def test_users_are_scored_together_by_their_own_client_and_history(monkeypatch):
    """In any order, some at a time; who belongs to no client is told why."""
    monkeypatch.setattr("coterie.llm.experiment.AT_ONCE", 3)
    experiment = Experiment(Settings())
    data, sizes = experiment.data, []

    def score(module, client, history):
        sizes.append(len(history))
        return torch.tensor([[client, *rows[-1:], len(rows)] for rows in history.tolists()])

    experiment._score = score
    users = torch.randperm(len(data.client_of), generator=torch.Generator().manual_seed(0))
    found = {}
    for places, scores in experiment.score_users(None, users):
        for place in places.tolist():
            assert place not in found
            found[place] = scores if isinstance(scores, UserError) else scores[places == place][0]
    assert sorted(found) == list(range(len(users)))
    assert max(sizes) == 3
    histories, most = data.split.before_test().tolists(), experiment.settings.data.max_history
    for place, user in enumerate(users.tolist()):
        client = int(data.client_of[user])
        if client < 0:
            assert "belongs to no client" in str(found[place])
        else:
            last = histories[user][-most:]
            assert found[place].tolist() == [client, last[-1], len(last)]
