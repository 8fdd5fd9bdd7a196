"""The split by global time against a plain loop, and on public data."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.data.interactions.interactions import Interactions, k_core
from coterie.core.data.sources.catalogue import load
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import default_core
from coterie.core.tensors.keys import Key
from coterie.llm.data.examples import global_split

KEY = Key.from_seed(3)


def table(rows, n_users=9, n_items=9, split=None):
    """Interactions of (user, item, time) rows."""
    user, item, time = (torch.tensor(part, dtype=torch.int64) for part in zip(*rows, strict=True))
    return Interactions(
        user,
        item,
        time,
        None,
        [f"u{n}" for n in range(n_users)],
        [f"i{n}" for n in range(n_items)],
        None,
        None,
        "test",
        split=None if split is None else torch.tensor(split),
    )


def parts(split):
    return [part.tolists() for part in (split.train, split.valid, split.test)]


def naive(rows, n_users):
    """Distinct times only: sort, keep the first of each pair, cut at 80 % and 90 %."""
    kept, seen = [], set()
    for user, item, _ in sorted(rows, key=lambda row: row[2]):
        if (user, item) not in seen:
            seen.add((user, item))
            kept.append((user, item))
    cuts = [0, len(kept) * 8 // 10, len(kept) * 9 // 10, len(kept)]
    return [
        [[i for u, i in kept[a:b] if u == user] for user in range(n_users)]
        for a, b in itertools.pairwise(cuts)
    ]


small = st.integers(0, 8)
pairs = st.tuples(small, small)
# Enough distinct pairs for three parts, and repeats of some of them.
repeated = st.tuples(
    st.lists(pairs, min_size=12, max_size=40, unique=True), st.lists(pairs, max_size=30)
).map(lambda both: both[0] + both[1])


def shuffled(rows, seed):
    return random.Random(seed).sample(rows, len(rows))


@given(repeated, st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_equals_a_plain_loop(pairs, seed):
    rows = [(*pair, time) for time, pair in enumerate(shuffled(pairs, seed))]
    rows = shuffled(rows, seed + 1)
    assert parts(global_split(table(rows), KEY)) == naive(rows, 9)


@given(repeated, st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_ties_do_not_depend_on_the_order_of_the_file(pairs, seed):
    rows = [(*pair, place % 5) for place, pair in enumerate(shuffled(pairs, seed))]
    first = parts(global_split(table(rows), KEY))
    assert parts(global_split(table(shuffled(rows, seed + 1)), KEY)) == first
    # No item is twice in a user's history, and times never go back.
    time = {}
    for user, item, when in rows:
        time[user, item] = min(when, time.get((user, item), when))
    for user in range(9):
        items = [item for part in first for item in part[user]]
        assert len(set(items)) == len(items)
        assert [time[user, item] for item in items] == sorted(time[user, item] for item in items)
    ends = [
        [time[user, item] for user, items in enumerate(part) for item in items] for part in first
    ]
    assert max(ends[0]) <= min(ends[1])
    assert max(ends[1]) <= min(ends[2])


def test_ties_are_random_in_the_key_and_fair():
    """One user, 30 items of one time, one before: each is a test item about equally often."""
    rows = [(0, 0, 0)] + [(0, item, 1) for item in range(1, 31)]
    data = table(rows, 1, 31)
    seeds = 400
    counts = torch.zeros(31)
    for seed in range(seeds):
        test = global_split(data, Key.from_seed(seed)).test
        counts[test.values] += 1
        assert test.values.numel() == 4
    expected = seeds * 4 / 30
    assert counts[0] == 0
    # Binomial: 5 standard deviations for the worst of 30.
    assert float((counts[1:] - expected).abs().max()) < 5 * (expected * (1 - 4 / 30)) ** 0.5


def test_one_user_has_no_luck_with_another_users_ties():
    rows = [(user, item, 1) for user in range(2) for item in range(60)] + [(0, 60, 0)]
    train = global_split(table(rows, 2, 61), KEY).train
    assert train.tolists()[0][1:] != train.tolists()[1]  # an order of each user's own


def test_the_sources_own_split_is_kept():
    rows = [(0, 1, 0), (0, 2, 1), (0, 1, 2), (0, 3, 3), (1, 2, 0), (1, 4, 1), (1, 2, 2)]
    split = global_split(table(rows, split=[0, 0, 1, 2, 1, 2, 2]), KEY)
    # A repeated item counts in the part of its first time.
    assert parts(split) == [
        [[1, 2], [], *[[]] * 7],
        [[], [2], *[[]] * 7],
        [[3], [4], *[[]] * 7],
    ]


def test_the_order_of_rows_is_nothing_to_the_sources_own_split():
    rows = [(0, 1, 0), (0, 2, 1), (0, 4, 2), (0, 3, 3)]
    data = table(rows, split=[0, 0, 1, 2])
    turned = data.take(torch.tensor([3, 1, 0, 2]))
    assert parts(global_split(turned, KEY)) == parts(global_split(data, KEY))


@pytest.mark.parametrize("n", [1, 4])
def test_too_few_interactions(n):
    with pytest.raises(UserError, match=rf"test has only {n} interactions, none of them"):
        global_split(table([(0, item, item) for item in range(n)] + [(0, 0, 20)] * 3), KEY)


def test_without_times():
    with pytest.raises(UserError, match="split by global time needs timestamps"):
        global_split(table([(0, item, 5) for item in range(9)]), KEY)


def test_an_order_of_each_user_is_no_global_time():
    data = replace(table([(0, 0, 0), (0, 1, 1)]), positions=True)
    with pytest.raises(UserError, match="has only the order of each user's interactions"):
        data.require_time("cutting blocks")
    assert replace(data, positions=False).require_time("cutting blocks").tolist() == [0, 1]


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["ml-100k", "ml-latest-small", "amazon-titles"])
def test_public_data(name, data_root):
    data = k_core(load(name, data_root), default_core(name))
    split = global_split(data, KEY)
    rows = [part.rows * data.n_items + part.values for part in vars(split).values()]
    assert torch.cat(rows).unique().numel() == sum(map(len, rows))
    pairs = (data.user * data.n_items + data.item).unique()
    assert torch.equal(torch.cat(rows).sort().values, pairs)
    if data.split is None:
        n = len(pairs)
        assert [len(part) for part in rows] == [
            n * 8 // 10,
            n * 9 // 10 - n * 8 // 10,
            n - n * 9 // 10,
        ]
        first = {}
        for pair, time in zip(
            (data.user * data.n_items + data.item).tolist(), data.time.tolist(), strict=True
        ):
            first[pair] = min(time, first.get(pair, time))
        spans = [[first[pair] for pair in part.tolist()] for part in rows]
        assert max(spans[0]) <= min(spans[1])
        assert max(spans[1]) <= min(spans[2])
