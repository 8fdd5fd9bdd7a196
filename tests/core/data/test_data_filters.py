"""k-core, blocks and splits against naive loops."""

from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.data.interactions.interactions import Interactions, k_core
from coterie.core.data.interactions.splits import earlier_items, split_block, temporal_blocks
from coterie.core.errors import UserError


def table(rows):
    """Interactions of (user, item, time) rows, ids up to 40."""
    user, item, time = (torch.tensor(part, dtype=torch.int64) for part in zip(*rows, strict=True))
    return Interactions(
        user,
        item,
        time,
        None,
        [f"u{n}" for n in range(41)],
        [f"i{n}" for n in range(41)],
        [f"title {n}" for n in range(41)],
        None,
        "test",
    )


def named(data):
    return [
        (data.user_names[u], data.item_names[i], t)
        for u, i, t in zip(data.user.tolist(), data.item.tolist(), data.time.tolist(), strict=True)
    ]


def rows_of(max_id, min_size=1):
    small = st.integers(0, max_id)
    return st.lists(st.tuples(small, small, st.integers(0, 20)), min_size=min_size, max_size=120)


@given(rows_of(8), st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_k_core_equals_naive_loop(rows, k):
    kept = rows
    while True:
        users, items = Counter(r[0] for r in kept), Counter(r[1] for r in kept)
        fewer = [r for r in kept if users[r[0]] >= k and items[r[1]] >= k]
        if fewer == kept:
            break
        kept = fewer
    if not kept:
        with pytest.raises(UserError, match="core"):
            k_core(table(rows), k)
        return
    core = k_core(table(rows), k)
    assert named(core) == [(f"u{u}", f"i{i}", t) for u, i, t in kept]
    assert core.titles == [f"title {name[1:]}" for name in core.item_names]


def test_k_core_refuses_negative_k():
    with pytest.raises(UserError, match="choose 0"):
        k_core(table([(0, 0, 0)]), -1)


@given(rows_of(40))
@settings(max_examples=40, deadline=None)
def test_renumbered_is_first_appearance(rows):
    data = table(rows).renumbered()
    assert list(dict.fromkeys(data.user.tolist())) == list(range(data.n_users))
    assert list(dict.fromkeys(data.item.tolist())) == list(range(data.n_items))
    assert named(data) == [(f"u{u}", f"i{i}", t) for u, i, t in rows]


@given(rows_of(12, min_size=10))
@settings(max_examples=30, deadline=None)
def test_blocks_cut_a_stable_sort(rows):
    rows[0] = (rows[0][0], rows[0][1], 30)  # at least two different times
    stream = temporal_blocks(table(rows))
    ordered = sorted(rows, key=lambda row: row[2])
    assert named(stream.interactions) == [(f"u{u}", f"i{i}", t) for u, i, t in ordered]
    n = len(rows)
    sizes = [int(0.6 * n), int(0.4 / 3 * n), int(0.4 / 3 * n)]
    assert [len(block) for block in stream.blocks] == [*sizes, n - sum(sizes)]
    end = 0
    for block, row in zip(stream.blocks, stream.statistics(), strict=True):
        assert block.rows.start == end
        end = block.rows.stop
        users, items = ({r[k] for r in ordered[:end]} for k in (0, 1))
        assert (block.n_users, block.n_items) == (len(users), len(items))
        assert row["sparsity"] == 1 - len(block) / (len(users) * len(items))
        had = {(user, item) for user, item, _ in ordered[: block.rows.start]}
        again = [(user, item) in had for user, item, _ in ordered[block.rows]]
        assert row["repeats"] == pytest.approx(sum(again) / len(again), abs=1e-15)
    assert end == n


@given(rows_of(6, min_size=12))
@settings(max_examples=30, deadline=None)
def test_what_users_had_before_a_block(rows):
    """Each item once, whatever split it was in, of the users of the block alone."""
    rows[0] = (rows[0][0], rows[0][1], 30)
    stream = temporal_blocks(table(rows))
    data = stream.interactions
    pairs = list(zip(data.user.tolist(), data.item.tolist(), strict=True))
    for block in stream.blocks:
        users = sorted({user for user, _ in pairs[block.rows]})
        past = pairs[: block.rows.start]
        expected = [sorted({i for u, i in past if u == user}) for user in users]
        assert earlier_items(stream, block, torch.tensor(users)).tolists() == expected


@pytest.mark.parametrize(
    "times", [(-(2**63), 2**63 - 1, 5), (0, 2**62, -(2**62)), (2**59 + 1, 2**59 - 1, 2**59)]
)
def test_blocks_of_all_times_that_there_are(times):
    rows = [(n % 7, n % 5, time) for n, time in enumerate(times * 5)]
    stream = temporal_blocks(table(rows))
    ordered = sorted(rows, key=lambda row: row[2])
    assert named(stream.interactions) == [(f"u{u}", f"i{i}", t) for u, i, t in ordered]


def test_blocks_refuse_constant_time():
    with pytest.raises(UserError, match="cutting blocks needs timestamps, and test has none"):
        temporal_blocks(table([(0, 1, 0), (1, 1, 0)] * 20))


@pytest.mark.parametrize("fractions", [(), (0.5, 0.5), (-0.1, 0.5), (0.0,)])
def test_blocks_refuse_impossible_fractions(fractions):
    with pytest.raises(UserError, match="fractions"):
        temporal_blocks(table([(0, 1, t) for t in range(20)]), fractions)


def test_blocks_refuse_too_few_rows():
    with pytest.raises(UserError, match="too few"):
        temporal_blocks(table([(0, 1, 0), (1, 1, 1)]))


@given(
    rows_of(6, min_size=30),
    st.sampled_from(["random", "chronological"]),
    st.sampled_from(["random", "file"]),
    st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_splits_partition_every_user(rows, order, ties, seed):
    rows[0] = (rows[0][0], rows[0][1], 30)
    stream = temporal_blocks(table(rows))
    for block in stream.blocks:
        splits = split_block(stream, block, order, seed, ties)
        expected = defaultdict(dict)  # a dict keeps the first time of a repeated item
        data = stream.interactions.take(torch.arange(block.rows.start, block.rows.stop))
        triples = zip(data.user.tolist(), data.item.tolist(), data.time.tolist(), strict=True)
        for user, item, time in triples:
            expected[user].setdefault(item, time)
        assert splits.ids.tolist() == sorted(expected)
        parts = [part.tolists() for part in (splits.train, splits.valid, splits.test)]
        for user, train, valid, test in zip(splits.ids.tolist(), *parts, strict=True):
            items = list(expected[user])
            n = len(items)
            n_test = -(-n // 10) if n >= 3 else 0
            n_valid = -(-(n - n_test) // 9) if n >= 3 else 0
            assert (len(valid), len(test)) == (n_valid, n_test)
            assert sorted(train + valid + test) == sorted(items)
            for part in (train, valid, test):  # in order of time
                assert part == [item for item in items if item in part]
            if order == "chronological":
                times = [expected[user][item] for item in train + valid + test]
                assert _first(times, len(train)) <= _rest(times, len(train))
                assert _first(times, n - n_test) <= _rest(times, n - n_test)
                if ties == "file":
                    assert train + valid + test == items


def _first(times, n):
    return max(times[:n], default=-1)


def _rest(times, n):
    return min(times[n:], default=10**9)


def test_ties_are_broken_by_chance_alone():
    """Of 20 items at one time after 10 earlier ones, each is as often among the last 3."""
    rows = [(0, item, item) for item in range(10)] + [(0, 10 + item, 50) for item in range(20)]
    rows += [(1, 0, 99)] * 10
    stream = temporal_blocks(table(rows), (0.75,))
    block = stream.blocks[0]
    hits = Counter()
    for seed in range(400):
        splits = split_block(stream, block, "chronological", seed)
        assert set(range(10)) <= set(splits.train.tolists()[0])
        hits.update(splits.test.tolists()[0])
    # 400 * 3 / 20 = 60 expected each, chi-square with 19 degrees of freedom below the 0.999
    # quantile 43.8.
    assert sum((hits[item] - 60) ** 2 / 60 for item in range(10, 30)) < 43.8
    as_in_file = split_block(stream, block, "chronological", 0, "file")
    assert as_in_file.test.tolists()[0] == [27, 28, 29]


def test_random_split_is_keyed_by_user_and_seed():
    def test_items(rows, seed=3):
        stream = temporal_blocks(table(rows), (0.9,))
        splits = split_block(stream, stream.blocks[0], "random", seed)
        return {
            stream.interactions.user_names[user]: {stream.interactions.item_names[i] for i in row}
            for user, row in zip(splits.ids.tolist(), splits.test.tolists(), strict=True)
        }

    rows = [(0, item, item) for item in range(30)] + [(1, item, 50) for item in range(9)]
    # The second user's rows change, the first one's split does not.
    others = rows[:30] + [(1, item + 5, 50) for item in range(9)]
    assert test_items(rows)["u0"] == test_items(others)["u0"]
    assert len({frozenset(test_items(rows, seed)["u0"]) for seed in range(8)}) > 4


def test_random_split_puts_every_place_into_the_test_equally_often():
    stream = temporal_blocks(table([(0, item, item) for item in range(12)]), (0.84,))
    hits = Counter(
        split_block(stream, stream.blocks[0], "random", seed).test.values.item()
        for seed in range(600)
    )
    # 10 items, 1 of them test: 60 expected each, chi-square with 9 degrees of freedom below the
    # 0.999 quantile 27.9.
    assert sum((hits[item] - 60) ** 2 / 60 for item in range(10)) < 27.9
