"""Clients by genre and by shop, against plain loops; complete, disjoint, blind to the targets."""

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.baselines import all_users
from coterie.llm.data.client_data import NOBODY, PUBLIC, build
from coterie.llm.data.examples import GlobalSplit, global_split
from coterie.llm.data.partition import genre_users, shares
from coterie.llm.data.shops import item_clusters, open_accounts
from coterie.llm.rules import measure_popularity
from coterie.llm.settings import FederatedDataSettings

KEY = Key.from_seed(0)
SAMPLE = k_core(generate(), 5)


@pytest.fixture
def sample():
    return SAMPLE


def built(data, partition, key=KEY, **more):
    return build(data, FederatedDataSettings(partition=partition, **more), key)


def split_of(rows, interactions):
    empty = Ragged.from_lists([[]] * len(rows))
    return GlobalSplit(Ragged.from_lists(rows), empty, empty), interactions


# By genre


def naive_genres(rows, genres, n_clients):
    """Client's genre of every user, user by user; None where it is drawn."""
    counts = [defaultdict(float) for _ in rows]
    for user, items in enumerate(rows):
        for item in items:
            for genre in genres[item]:
                counts[user][genre] += 1 / len(genres[item])
    total = Counter()
    for own in counts:
        total.update(own)
    base = {genre: n / sum(total.values()) for genre, n in total.items()}

    def scores(user):
        own, n = counts[user], sum(counts[user].values())
        return {g: (own[g] / n * math.log(own[g] / n / base[g]), own[g] / n / base[g]) for g in own}

    first = Counter()
    for user in range(len(rows)):
        found = scores(user)
        best = max(found, key=lambda g: found[g], default=None)
        if best is not None and found[best][0] > 0:
            first[best] += 1
    chosen = sorted(sorted(first), key=lambda g: -first[g])[:n_clients]
    clients = []
    for user in range(len(rows)):
        found = {g: v for g, v in scores(user).items() if g in chosen}
        place = 0 if any(v[0] > 0 for v in found.values()) else 1
        clients.append(max(found, key=lambda g: found[g][place], default=None))
    return clients


@pytest.mark.parametrize("n_clients", [1, 3, 5, 9])
def test_genres_equal_a_loop_over_users(sample, n_clients):
    split = global_split(sample, KEY)
    users = torch.nonzero(split.train.lengths > 0).flatten()
    client = genre_users(split, users, n_clients, sample, KEY).tolist()
    wanted = naive_genres(split.train.take(users).tolists(), sample.genres, n_clients)
    pairs = {(c, g) for c, g in zip(client, wanted, strict=True) if g is not None}
    assert len(pairs) == n_clients == len(set(client))  # one genre a client, and the reverse
    sizes = Counter(client)
    assert [sizes[c] for c in range(n_clients)] == sorted(sizes.values(), reverse=True)


def test_users_without_one_of_the_genres_are_drawn(sample):
    genres = [["a"], ["b"], ["c"], []]
    rows = [[0, 0, 1]] * 3 + [[1]] * 3 + [[2]] + [[3]] * 60
    split, items = split_of(rows, replace(sample, genres=genres, item_names=list("0123")))
    client = genre_users(split, torch.arange(67), 2, items, KEY)
    assert client[:3].unique().numel() == client[3:6].unique().numel() == 1
    assert client[0] != client[3]
    assert 20 < int(client[7:].sum()) < 40
    fewer = genre_users(split, torch.arange(40), 2, items, KEY)  # each is drawn by its own number
    assert (client[7:40] == client[7]).tolist() == (fewer[7:] == fewer[7]).tolist()


def test_validation_items_place_who_has_no_train_item(sample):
    train, valid = [[0]] * 5 + [[1]] * 4 + [[]], [[]] * 9 + [[1]]
    split = GlobalSplit(*map(Ragged.from_lists, (train, valid, [[0]] * 10)))
    items = replace(sample, genres=[["a"], ["b"]], item_names=["0", "1"])
    assert genre_users(split, torch.arange(10), 2, items, KEY).tolist() == [0] * 5 + [1] * 5


def test_brands_are_genres_where_there_are_none(sample):
    rows = [[0], [1], [1], [2]]
    items = replace(sample, genres=None, brands=["a", "b", ""], item_names=list("012"))
    split, items = split_of(rows, items)
    client = genre_users(split, torch.arange(4), 2, items, KEY).tolist()
    assert client[1] == client[2] != client[0]


def test_what_genres_refuse(sample):
    bare = replace(sample, genres=None)
    with pytest.raises(UserError, match=r"neither genres nor brands .* another --data\.partition"):
        built(bare, "genres")
    with pytest.raises(UserError, match=r"40 clients, but only \d genres .* at most \d clients"):
        built(sample, "genres", clients=40)


def test_a_genre_of_no_train_item_stands_out_nowhere():
    share, lift = shares(Ragged.from_lists([[0], [1]]), torch.tensor([True, False]), [[0], [1]], 2)
    assert share.tolist() == [[1, 0], [0, 1]]
    assert lift.tolist() == [[1, 0], [0, 0]]


# By shop


def pairs_of(rows):
    return [(row, item) for row, items in enumerate(rows.tolists()) for item in items]


def opened(sample, skew=0.1, n_clients=5, key=KEY):
    split = global_split(sample, key.fold("split"))
    public = torch.arange(0, split.n_users, 5)
    return split, public, open_accounts(sample, split, public, n_clients, skew, key)


@pytest.mark.parametrize("skew", [0.05, 1.0, 1e4])
def test_every_interaction_is_in_one_account_of_its_user(sample, skew):
    split, public, accounts = opened(sample, skew)
    owner, shop = [], accounts.shop.tolist()
    for name, at in zip(accounts.interactions.user_names, shop, strict=True):
        plain, _, number = name.partition("@")
        assert (number == "") == (at < 0)
        assert at < 0 or int(number) == at
        owner.append(sample.user_names.index(plain))
    assert len(set(zip(owner, shop, strict=True))) == len(owner)
    assert {user for user, at in zip(owner, shop, strict=True) if at < 0} == set(public.tolist())
    for part in ("train", "valid", "test"):
        before, after = (pairs_of(getattr(one, part)) for one in (split, accounts.split))
        assert sorted((owner[account], item) for account, item in after) == sorted(before)
    rows = split.train.tolists()
    for account, mine in enumerate(accounts.split.train.tolists()):  # in the order of time
        assert mine == [item for item in rows[owner[account]] if item in mine]
    rows = accounts.interactions
    assert [owner[account] for account in rows.user.tolist()] == sample.user.tolist()
    anywhere = set(itertools.chain(*(pairs_of(part) for part in vars(accounts.split).values())))
    assert set(zip(rows.user.tolist(), rows.item.tolist(), strict=True)) == anywhere


def test_shops_follow_the_clusters(sample):
    """A cluster's train items are divided by the ratios; later ones follow, and skew rules."""
    found = {}
    for skew in (0.05, 1e4):
        split, public, accounts = opened(sample, skew)
        private = [user for user in range(split.n_users) if user % 5]
        cluster = item_clusters(
            Ragged.from_lists([r if u % 5 else [] for u, r in enumerate(split.train.tolists())]),
            sample.n_items,
            20,
            KEY,
        ).tolist()
        assert len(private) + len(public) == split.n_users
        counts = {part: defaultdict(Counter) for part in ("train", "test")}
        for part, of in counts.items():
            for account, item in pairs_of(getattr(accounts.split, part)):
                if accounts.shop[account] >= 0:
                    of[cluster[item]][int(accounts.shop[account])] += 1
        largest = [max(of.values()) / of.total() for of in counts["train"].values()]
        found[skew] = sum(largest) / len(largest)
        for number, of in counts["test"].items():
            train, n = counts["train"][number], of.total()
            for shop in range(5):
                p = train[shop] / train.total()
                assert abs(of[shop] - n * p) <= 5 * math.sqrt(n * p * (1 - p)) + 1e-9
    assert found[0.05] > 0.8
    assert found[1e4] < 0.3


def test_later_items_move_nothing(sample):
    split, public, accounts = opened(sample)
    others = replace(split, valid=split.test, test=split.valid)
    again = open_accounts(sample, others, public, 5, 0.1, KEY)

    def trained(one):
        names = one.interactions.user_names
        rows = zip(names, one.split.train.tolists(), strict=True)
        return {name: row for name, row in rows if row}

    # Shops are numbered by their accounts, to which validation adds some: compare by what is sold.
    ours, theirs = (sorted(trained(one).values()) for one in (accounts, again))
    assert ours == theirs


def test_an_item_without_a_train_row_has_a_cluster():
    rows = Ragged.from_lists([[0, 1], [0, 1], [2, 3], [2, 3]])
    found = item_clusters(rows, 6, 2, KEY).tolist()
    assert found[0] == found[1] != found[2] == found[3]
    assert set(found) == {0, 1}


def test_shops_that_cannot_be_filled(sample):
    with pytest.raises(UserError, match=r"'data\.skew' 0\.1 so that each has 1: .*'data\.clients'"):
        built(sample, "shops", clients=9000)


# Whatever the partition


@pytest.mark.parametrize("partition", ["genres", "shops"])
def test_a_federation_is_complete(sample, partition):
    data, plain = built(sample, partition), built(sample, "k-means")
    known = data.split.before_test().lengths > 0
    assert torch.equal(data.client_of == NOBODY, ~known)
    rows = data.describe_clients()
    assert [r["users"] for r in rows] == sorted((r["users"] for r in rows), reverse=True)
    assert sum(r["users"] for r in rows) == int((data.client_of >= 0).sum())
    for ours, theirs in zip(
        (data.public.train, data.public.held_out),
        (plain.public.train, plain.public.held_out),
        strict=True,
    ):
        assert ours.history.tolists() == theirs.history.tolists()  # one backbone for all
        assert torch.equal(ours.target, theirs.target)
    assert torch.equal(data.public_counts(), plain.public_counts())
    for client, queries in enumerate(data.clients.test):
        assert bool((data.client_of[queries.user] == client).all())
        for had, want in zip(queries.seen.tolists(), queries.targets.tolists(), strict=True):
            assert not set(had) & set(want)
    users = all_users(data)
    assert users.ids.tolist() == torch.nonzero(known).flatten().tolist()
    measured = sum(len(part["recall@10"]) for part in measure_popularity(data, "test"))
    assert measured == sum(map(len, data.clients.test))
    few = built(sample, partition, shots=40)
    assert sum(map(len, few.clients.train)) == 40
    assert torch.equal(few.client_of, data.client_of)


@settings(max_examples=10)
@given(
    partition=st.sampled_from(["k-means", "genres", "shops"]),
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 6),
    skew=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_an_interaction_of_a_private_user_is_with_one_client(partition, seed, clients, skew):
    sample, key = SAMPLE, Key.from_seed(seed)
    data = built(sample, partition, key, clients=clients, skew=skew)
    split = global_split(sample, key.fold("split"))
    names = [name.partition("@")[0] for name in data.interactions.user_names]
    place = {name: number for number, name in enumerate(sample.user_names)}
    public = {names[u] for u in torch.nonzero(data.client_of == PUBLIC).flatten().tolist()}
    known = {sample.user_names[u] for u, n in enumerate(split.before_test().lengths) if n}
    seen = defaultdict(list)
    for part in ("train", "valid"):
        for user, item in pairs_of(getattr(data.split, part)):
            if names[user] not in public:
                seen[place[names[user]], item].append(int(data.client_of[user]))
    expected = {
        pair for pair in pairs_of(split.before_test()) if sample.user_names[pair[0]] not in public
    }
    assert set(seen) == expected
    assert all(len(of) == 1 and 0 <= of[0] < clients for of in seen.values())
    assert public <= known
