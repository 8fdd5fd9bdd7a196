"""Splits in chunks of users, first appearances and orders, against plain Python and numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.data.interactions import splits
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.interactions.splits import (
    first_of_pair,
    split_block,
    split_users,
    temporal_blocks,
)
from coterie.core.tensors import ordering
from coterie.core.tensors import ordering as appearance
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ordering import by_first_appearance, by_number, first_places
from coterie.core.tensors.stacked import Ragged

N_USERS, N_ITEMS = 90, 40
NUMBERS = st.lists(st.integers(0, 11), max_size=60).map(lambda n: torch.tensor(n, dtype=torch.long))


def random_data(n=3000):
    """Most users and items repeat, many times are equal, some users have no row."""
    rng = np.random.default_rng(5)
    user = rng.integers(0, N_USERS, n) ** 2 // N_USERS
    columns = user, rng.integers(0, N_ITEMS, n), rng.integers(0, 9, n)
    names = [[str(number) for number in range(above)] for above in (N_USERS, N_ITEMS)]
    return Interactions(*map(torch.from_numpy, columns), None, *names, None, None, "random")


def naive_split(data, users, order, ties, key):
    """Parts of each user, by sorting lists with the very draws that the keys give."""
    found = []
    rows = list(zip(data.user.tolist(), data.item.tolist(), data.time.tolist(), strict=True))
    for user in users:
        first = {}
        for each, item, time in rows:
            if each == user:
                first.setdefault(item, time)
        items, n = list(first), len(first)
        bits = key.fold(torch.tensor([user])).bits(torch.arange(n)).tolist()
        draws = [(number % (1 << 64)) >> 21 for number in bits]
        by_time = order == "chronological"
        place = {
            item: (first[item] if by_time else 0, number if by_time and ties == "file" else draw)
            for number, (item, draw) in enumerate(zip(items, draws, strict=True))
        }
        ordered = sorted(items, key=place.get)
        n_test = -(-n // 10) if n >= 3 else 0
        n_valid = -(-(n - n_test) // 9) if n >= 3 else 0
        n_train = n - n_valid - n_test
        cut = ordered[:n_train], ordered[n_train : n_train + n_valid], ordered[n_train + n_valid :]
        found.append([[item for item in items if item in part] for part in cut])
    return found


def by_user(split):
    parts = (part.tolists() for part in (split.train, split.valid, split.test))
    return [list(each) for each in zip(*parts, strict=True)]


@pytest.mark.parametrize("order", ["random", "chronological"])
@pytest.mark.parametrize("ties", ["random", "file"])
@pytest.mark.parametrize("chunk", [1, 50, 1 << 19])
def test_splits_are_those_of_plain_lists_for_any_chunk(monkeypatch, order, ties, chunk):
    monkeypatch.setattr(splits, "_CHUNK", chunk)
    stream = temporal_blocks(random_data())
    for block in stream.blocks[:2]:
        split = split_block(stream, block, order, 7, ties)
        data = stream.interactions.take(torch.arange(block.rows.start, block.rows.stop))
        key = Key.from_seed(7).fold("split", block.index)
        expected = naive_split(data, split.ids.tolist(), order, ties, key)
        assert by_user(split) == expected
        assert split.ids.tolist() == sorted(set(data.user.tolist()))


def test_rows_that_are_in_no_order_of_time_are_split_by_time():
    data = random_data()
    split = split_users(data, "chronological", 7)
    key = Key.from_seed(7).fold("split", 0)
    expected = naive_split(data, split.ids.tolist(), "chronological", "random", key)
    assert by_user(split) == expected


def test_nobody_has_nothing():
    split = split_users(random_data().take(torch.arange(0)), "random", 0)
    assert (len(split.train), len(split.test), split.ids.tolist()) == (0, 0, [])


@given(NUMBERS, st.sampled_from([1, 4, 1 << 16]))
@settings(max_examples=30, deadline=None)
def test_first_appearance(numbers, chunk):
    appearance._CHUNK, before = chunk, appearance._CHUNK
    try:
        places = first_places(numbers, 12)
        new, old = by_first_appearance(numbers, 12)
    finally:
        appearance._CHUNK = before
    listed = numbers.tolist()
    assert places.tolist() == [listed.index(n) if n in listed else len(listed) for n in range(12)]
    assert old.tolist() == list(dict.fromkeys(listed))
    assert new.tolist() == [old.tolist().index(n) for n in listed]
    found, place = by_number(numbers, 12)
    assert (found.tolist(), found[place].tolist()) == (sorted(set(listed)), listed)


@given(
    NUMBERS,
    st.sampled_from([1, 3, 1 << 16]),
    st.sampled_from([12, 1 << 40, 1 << 62]),
    st.sampled_from([0, 2**31 - 5, -(2**62)]),
)
@settings(max_examples=30, deadline=None)
def test_orders_are_stable(numbers, at_once, above, least):
    ordering._AT_ONCE, before = at_once, ordering._AT_ONCE
    try:
        order = ordering.ascending(numbers * (above // 12) + least, above + least, least)
        rows = Ragged.from_pairs(numbers, torch.arange(numbers.numel()), 12)
    finally:
        ordering._AT_ONCE = before
    assert order.tolist() == np.argsort(numbers.numpy(), kind="stable").tolist()
    assert rows.tolists() == [
        [p for p, n in enumerate(numbers.tolist()) if n == r] for r in range(12)
    ]


@pytest.mark.parametrize("n_items", [20, 1 << 40])
def test_first_of_pairs_of_small_and_large_numbers(n_items):
    rng = np.random.default_rng(1)
    client, item = (torch.from_numpy(rng.integers(0, 20, 300)) for _ in range(2))
    pairs = list(zip(client.tolist(), item.tolist(), strict=True))
    expected = [n for n, pair in enumerate(pairs) if pair not in pairs[:n]]
    assert first_of_pair(client, item, n_items).tolist() == expected
