"""Public users, clusters and shots: drawn by key, complete, and blind to the targets."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.data import partition
from coterie.llm.data.examples import GlobalSplit
from coterie.llm.data.partition import cluster_users, few_shot, public_users, user_vectors

KEY = Key.from_seed(5)
NOTHING = [[]]


def split_of(train, valid=None, test=None):
    empty = NOTHING * len(train)
    return GlobalSplit(*(Ragged.from_lists(part or empty) for part in (train, valid, test)))


def tastes(n_groups, per_group, n_items=20, seed=0):
    """Users of each group like their own block of items."""
    generator = np.random.default_rng(seed)
    return [
        (group * n_items + generator.choice(n_items, 12, replace=False)).tolist()
        for group in range(n_groups)
        for _ in range(per_group)
    ]


def test_public_users_have_train_items_and_grow_with_the_share():
    split = split_of([[1], [], [2, 3]] * 20)
    few, many = (public_users(split, share, KEY).tolist() for share in (0.2, 0.5))
    assert (len(few), len(many)) == (8, 20)
    assert set(few) < set(many)
    assert all(user % 3 != 1 for user in many)
    assert few == sorted(few)
    assert few != public_users(split, 0.2, Key.from_seed(6)).tolist()
    assert public_users(split, 0, KEY).numel() == 0


@pytest.mark.parametrize("share", [-0.1, 1, float("nan")])
def test_impossible_shares(share):
    with pytest.raises(UserError, match="public share of users is"):
        public_users(split_of([[1], [2]]), share, KEY)
    with pytest.raises(UserError, match="takes all 2 users"):
        public_users(split_of([[1], [2]]), 0.8, KEY)


def test_vectors_equal_a_dense_svd_up_to_a_rotation():
    rows = tastes(3, 8)
    fit = torch.arange(24) % 4 > 0
    vectors = user_vectors(Ragged.from_lists(rows), fit, 60, 3, KEY)
    dense = np.zeros((24, 60))
    for user, items in enumerate(rows):
        dense[user, items] = 1
    right = np.linalg.svd(dense[fit.numpy()])[2][:3]
    wanted = dense @ right.T
    np.testing.assert_allclose(vectors @ vectors.T, wanted @ wanted.T, atol=1e-6)


def test_groups_of_taste_are_found():
    rows = tastes(4, 15)
    client = cluster_users(split_of(rows), torch.arange(60), 4, 80, KEY)
    assert adjusted_rand_score(np.repeat(np.arange(4), 15), client) == 1


def test_clients_are_numbered_by_size():
    rows = tastes(1, 5) + [[item + 20 for item in row] for row in tastes(1, 9)]
    client = cluster_users(split_of(rows), torch.arange(14), 2, 40, KEY)
    assert client.tolist() == [1] * 5 + [0] * 9


def test_users_without_train_items_follow_their_validation_items():
    rows = tastes(3, 10)
    hidden = [0, 11, 22]
    train = [[] if user in hidden else items for user, items in enumerate(rows)]
    valid = [items if user in hidden else [] for user, items in enumerate(rows)]
    client = cluster_users(split_of(train, valid), torch.arange(30), 3, 60, KEY)
    assert adjusted_rand_score(np.repeat(np.arange(3), 10), client) == 1


def test_targets_have_no_influence():
    rows = tastes(3, 10)
    users = torch.arange(30)
    without = cluster_users(split_of(rows), users, 3, 60, KEY)
    others = [[(item + 20) % 60 for item in row] for row in rows]
    assert torch.equal(cluster_users(split_of(rows, others, others), users, 3, 60, KEY), without)


def test_activity_does_not_count(monkeypatch):
    monkeypatch.setattr(partition, "_DIM", 2)
    rows = [row[: 2 if user % 2 else 12] for user, row in enumerate(tastes(1, 40))]
    active, clients = np.arange(40) % 2, []
    for normalised in (True, False):
        if not normalised:
            monkeypatch.setattr("sklearn.preprocessing.normalize", lambda vectors: vectors)
        clients.append(cluster_users(split_of(rows), torch.arange(40), 2, 20, KEY))
    ours, raw = (adjusted_rand_score(active, client) for client in clients)
    assert ours < 0.9
    assert raw == 1


@pytest.mark.parametrize("n_clients", [1, 2, 7, 24])
def test_every_client_has_a_user(n_clients):
    client = cluster_users(split_of(tastes(3, 8)), torch.arange(24), n_clients, 60, KEY)
    sizes = torch.bincount(client, minlength=n_clients)
    assert len(sizes) == n_clients
    assert int(sizes.min()) >= 1
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)


@pytest.mark.parametrize("n_clients", [0, 25, -1])
def test_more_clients_than_users(n_clients):
    with pytest.raises(UserError, match="for 24 users: choose 1 to 24 clients"):
        cluster_users(split_of(tastes(3, 8)), torch.arange(24), n_clients, 60, KEY)


def test_users_who_cannot_be_told_apart():
    with pytest.raises(UserError, match="apart in only 2 groups: choose at most 2"):
        cluster_users(split_of([[0, 1], [2, 3]] * 5), torch.arange(10), 3, 4, KEY)


def test_nobody_with_a_train_item():
    with pytest.raises(UserError, match="has a train item"):
        cluster_users(split_of([[], []], [[1], [2]]), torch.arange(2), 1, 4, KEY)


def test_shots_are_shared_in_proportion():
    sizes = [400, 0, 1200, 2400]
    total = np.zeros(4)
    for seed in range(50):
        kept = few_shot(sizes, 100, Key.from_seed(seed))
        counts = [len(part) for part in kept]
        assert sum(counts) == 100
        for part, size in zip(kept, sizes, strict=True):
            assert part.tolist() == sorted(set(part.tolist()))
            assert part.numel() == 0 or int(part.max()) < size
        total += counts
    np.testing.assert_allclose(total / 50, [10, 0, 30, 60], atol=4)


def test_more_shots_keep_the_fewer():
    few, many = few_shot([50, 70], 20, KEY), few_shot([50, 70], 60, KEY)
    assert all(set(a.tolist()) <= set(b.tolist()) for a, b in zip(few, many, strict=True))


@pytest.mark.parametrize("shots", [None, 120, 5000])
def test_all_shots(shots):
    assert [len(part) for part in few_shot([50, 70], shots, KEY)] == [50, 70]
