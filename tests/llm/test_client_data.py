"""What an experiment reads: complete, disjoint, and by client."""

import itertools
from dataclasses import replace

import pytest
import torch

from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.sources.catalogue import load
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.baselines import all_users
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.client_data import NOBODY, PUBLIC, build
from coterie.llm.data.examples import evaluation_queries, training_examples
from coterie.llm.settings import FederatedDataSettings

KEY = Key.from_seed(0)


def build_of(data, clients, key=KEY, **more):
    return build(data, FederatedDataSettings(clients=clients, **more), key)


@pytest.fixture(scope="module")
def sample():
    return k_core(generate(), 5)


@pytest.fixture(scope="module")
def data(sample):
    return build_of(sample, 5)


def rows_of(examples):
    return list(zip(map(tuple, examples.history.tolists()), examples.target.tolist(), strict=True))


def test_examples_of_clients_and_public_are_all_there_are(data):
    examples, owner = training_examples(data.split.train)
    for client in range(5):
        mine = torch.nonzero(data.client_of[owner] == client).flatten()
        assert rows_of(data.clients.train[client]) == rows_of(examples.take(mine))
    public = rows_of(data.public.train) + rows_of(data.public.held_out)
    mine = torch.nonzero(data.client_of[owner] == PUBLIC).flatten()
    assert sorted(public) == sorted(rows_of(examples.take(mine)))
    assert 0 < len(data.public.held_out) < len(data.public.train)


@pytest.mark.parametrize("part", ["valid", "test"])
def test_queries_are_of_the_clients_users(data, part):
    queries = evaluation_queries(data.split, part)
    asked = [query.user.tolist() for query in getattr(data.clients, part)]
    assert sorted(itertools.chain(*asked)) == [
        user for user in queries.user.tolist() if data.client_of[user] >= 0
    ]
    for client, users in enumerate(asked):
        assert all(data.client_of[user] == client for user in users)
    for query in getattr(data.clients, part):
        for had, want in zip(query.seen.tolists(), query.targets.tolists(), strict=True):
            assert not set(had) & set(want)


def test_every_user_has_one_place(data):
    known = data.split.before_test().lengths > 0
    assert torch.equal(data.client_of == NOBODY, ~known)
    users = all_users(data)
    assert users.ids.tolist() == torch.nonzero(known).flatten().tolist()
    for place, user in enumerate(users.ids.tolist()):
        assert users.train.tolists()[place] == data.split.train.tolists()[user]
        public = int(data.client_of[user]) == PUBLIC
        for part in ("valid", "test"):
            wanted = [] if public else getattr(data.split, part).tolists()[user]
            assert getattr(users, part).tolists()[place] == wanted


def test_take_is_the_list_form(data):
    part = data.clients.take(torch.tensor([3, 1]))
    assert part.ids.tolist() == [3, 1]
    assert part.train == [data.clients.train[3], data.clients.train[1]]
    assert len(part) == 2
    assert len(data.clients.take(torch.tensor([], dtype=torch.int64))) == 0


def test_counts(data):
    rows = data.describe_clients()
    assert [row["users"] for row in rows] == sorted((row["users"] for row in rows), reverse=True)
    assert sum(row["users"] for row in rows) == int((data.client_of >= 0).sum())
    assert sum(row["examples"] for row in rows) == sum(map(len, data.clients.train))
    public = int((data.client_of == PUBLIC).sum())
    assert public == round(0.2 * int((data.split.train.lengths > 0).sum()))
    assert [row["test_users"] for row in rows] == [len(part) for part in data.clients.test]


def test_the_same_key_gives_the_same_data(sample, data):
    again = build_of(sample, 5)
    assert torch.equal(again.client_of, data.client_of)
    other = build_of(sample, 5, Key.from_seed(1))
    assert not torch.equal(other.client_of, data.client_of)


def test_few_shots_leave_queries_and_public_data_alone(sample, data):
    few = build_of(sample, 5, shots=64)
    assert sum(map(len, few.clients.train)) == 64
    assert len(few.public.train) == len(data.public.train)
    assert torch.equal(few.client_of, data.client_of)
    for client in range(5):
        assert set(rows_of(few.clients.train[client])) <= set(rows_of(data.clients.train[client]))
        assert torch.equal(few.clients.test[client].user, data.clients.test[client].user)


@pytest.mark.parametrize("n_clients", [1, 20, 100])
def test_other_numbers_of_clients(sample, n_clients):
    built = build_of(sample, n_clients, shots=30)
    assert len(built.clients) == n_clients
    assert min(row["users"] for row in built.describe_clients()) >= 1
    assert sum(row["examples"] for row in built.describe_clients()) == 30


def test_a_client_without_examples_is_named(sample):
    built = build_of(sample, 20, shots=3)
    idle = built.idle_clients()
    assert idle == [c for c in range(20) if not len(built.clients.train[c])]
    assert len(idle) >= 17
    assert build_of(sample, 2).idle_clients() == []


def test_no_public_users(sample):
    built = build_of(sample, 3, public=0)
    assert len(built.public.train) == len(built.public.held_out) == 0
    assert not bool((built.client_of == PUBLIC).any())


def test_impossible_settings(sample):
    with pytest.raises(UserError, match="1000 clients for 2"):
        build_of(sample, 1000)


def test_titles(sample, data):
    assert data.catalogue.require_titles() == sample.titles
    with pytest.raises(UserError, match=r"has no titles: .*--data\.columns title=COLUMN"):
        Catalogue.of(replace(sample, titles=None)).require_titles()


@pytest.mark.real_data
def test_ml_100k(data_root):
    built = build_of(k_core(load("ml-100k", data_root), 10), 5)
    sizes = [part.values.numel() for part in vars(built.split).values()]
    assert sizes == [78_362, 9_795, 9_796]
    # Few users come back after the cuts: this is what global time does to MovieLens.
    known, wanted = built.split.before_test().lengths > 0, built.split.test.lengths > 0
    assert int((known & wanted).sum()) < 100 < int((known & ~wanted).sum())


def test_few_validate_and_all_are_tested(sample, data):
    fewer = build_of(sample, 5, valid_users=4)
    for some, all_ in zip(fewer.clients.valid, data.clients.valid, strict=True):
        assert len(some) == min(4, len(all_))
        kept = torch.isin(all_.user, some.user).nonzero().flatten()
        assert torch.equal(all_.take(kept).user, some.user)
        assert all_.take(kept).targets.tolists() == some.targets.tolists()
    assert [len(part) for part in fewer.clients.test] == [len(part) for part in data.clients.test]
