"""Rows that came later: numbers, filters and what is had, against loops over rows."""

import random

import pytest
import torch

from coterie.core.data.interactions.interactions import Interactions, k_core
from coterie.core.data.interactions.later import with_all_had, with_later
from coterie.core.data.interactions.splits import temporal_blocks
from coterie.core.errors import UserError


def data(rows, source="file", titles=None, **more):
    """Interactions of (user, item, time) by name, numbered as they come."""
    users, items = (list(dict.fromkeys(row[place] for row in rows)) for place in (0, 1))
    columns = (
        [users.index(row[0]) for row in rows],
        [items.index(row[1]) for row in rows],
        [row[2] for row in rows],
    )
    tensors = (torch.tensor(column, dtype=torch.int64) for column in columns)
    return Interactions(*tensors, None, users, items, titles, None, source, **more)


def named(found):
    return [
        (found.user_names[user], found.item_names[item], time)
        for user, item, time in zip(
            found.user.tolist(), found.item.tolist(), found.time.tolist(), strict=True
        )
    ]


def drawn(seed, count, start, users, items):
    draw = random.Random(seed)
    return [
        (f"u{draw.randrange(users)}", f"i{draw.randrange(items)}", start + draw.randrange(20))
        for _ in range(count)
    ]


def kept_by_a_loop(old, new, k):
    """Rows of the new ones that stay: who is known always does."""
    users, items = {row[0] for row in old}, {row[1] for row in old}
    while True:
        counts = [[row[place] for row in new] for place in (0, 1)]
        stay = [
            row
            for row in new
            if (row[0] in users or counts[0].count(row[0]) >= k)
            and (row[1] in items or counts[1].count(row[1]) >= k)
        ]
        if stay == new:
            return stay
        new = stay


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [0, 2, 4])
def test_the_filter_of_later_rows_equals_a_loop(seed, k):
    old, new = drawn(seed, 120, 0, 8, 9), drawn(seed + 50, 60, 100, 16, 18)
    before = temporal_blocks(k_core(data(old), k), (0.5,))
    grown = with_later(before, data(new, "new.csv"), k)
    found, count = named(grown.interactions), len(before.interactions)
    assert found[:count] == named(before.interactions)
    in_time = sorted(kept_by_a_loop(named(before.interactions), new, k), key=lambda row: row[2])
    assert found[count:] == in_time
    assert grown.blocks[:-1] == before.blocks
    known = before.interactions
    assert grown.interactions.user_names[: known.n_users] == known.user_names
    assert grown.interactions.item_names[: known.n_items] == known.item_names
    last = grown.blocks[-1]
    assert (last.rows.start, last.rows.stop) == (count, len(found))
    users, items = ({row[place] for row in found} for place in (0, 1))
    assert (last.n_users, last.n_items) == (len(users), len(items))
    gone = sum(one.rows for one in grown.interactions.dropped) - (len(old) - count)
    assert gone == len(new) - len(in_time)
    if gone:
        assert grown.interactions.dropped[-1].why.endswith("of new.csv")


def test_without_a_filter_it_is_what_one_file_gives():
    old, new = drawn(1, 60, 0, 8, 9), drawn(2, 40, 100, 16, 18)
    grown = with_later(temporal_blocks(data(old), (0.5,)), data(new), 0)
    whole = temporal_blocks(data([*old, *new]), (0.3, 0.3))
    assert grown.blocks == whole.blocks
    for name in ("user", "item", "time"):
        assert torch.equal(getattr(grown.interactions, name), getattr(whole.interactions, name))
    assert grown.interactions.user_names == whole.interactions.user_names
    assert grown.interactions.item_names == whole.interactions.item_names


def test_what_filters_left_out_before_is_had_by_who_comes_back():
    """A user who had too few rows at first is new later, and is not recommended what was had."""
    old = [("ann", "tea", 1), ("ann", "jam", 2), ("bob", "tea", 3), ("bob", "jam", 4)]
    old += [("cat", "jam", 5), ("cat", "nuts", 6)]  # nuts are too few, and then so is cat
    new = [("cat", "tea", 7), ("cat", "tea", 8), ("ann", "tea", 9)]
    read = [data(old), data(new)]
    before = temporal_blocks(k_core(read[0], 2), (0.5,))
    assert before.interactions.user_names == ["ann", "bob"]
    grown = with_all_had(with_later(before, read[1], 2), read).interactions
    user, item = grown.had()
    had = {(grown.user_names[u], grown.item_names[i]) for u, i in zip(user, item, strict=True)}
    names = set(grown.item_names)
    assert had == {(u, i) for u, i, _ in [*old, *new] if i in names}
    assert ("cat", "jam") in had
    assert grown.besides is not None
    assert not set(zip(*grown.besides.T.tolist(), strict=True)) & set(
        zip(grown.user.tolist(), grown.item.tolist(), strict=True)
    )


def test_what_is_known_of_items_stays_and_new_ones_have_theirs():
    old = data([("ann", "tea", 1), ("ann", "jam", 2)], titles=["Tea", "Jam"], brands=["x", ""])
    stream = temporal_blocks(old, (0.5,))
    new = data([("ann", "nuts", 3), ("ann", "tea", 4)], titles=["Nuts", "Other tea"])
    found = with_later(stream, new, 0).interactions
    assert dict(zip(found.item_names, found.titles, strict=True)) == {
        "tea": "Tea",
        "jam": "Jam",
        "nuts": "Nuts",
    }
    assert found.brands == ["x", "", ""]
    untitled = data([("ann", "nuts", 3)])
    assert with_later(stream, untitled, 0).interactions.titles == ["Tea", "Jam", "nuts"]


def test_times_of_another_unit_are_refused():
    stream = temporal_blocks(data([("ann", "tea", 10**9), ("ann", "jam", 10**9 + 1)]), (0.5,))
    with pytest.raises(UserError, match="of another unit"):
        with_later(stream, data([("ann", "tea", 10**12), ("ann", "tea", 10**12 + 5)]), 0)
    assert with_later(stream, data([("ann", "tea", 3 * 10**9)]), 0).blocks[-1].index == 2


def test_a_row_at_the_newest_time_is_not_later():
    stream = temporal_blocks(data([("ann", "tea", 1), ("ann", "jam", 2)]), (0.5,))
    with pytest.raises(UserError, match="1 of 2 rows of file are not later than"):
        with_later(stream, data([("ann", "rice", 2), ("ann", "rice", 3)]), 0)
    assert with_later(stream, data([("ann", "rice", 3)]), 0).blocks[-1].index == 2


def test_positions_are_no_times():
    stream = temporal_blocks(data([("ann", "tea", 1), ("ann", "jam", 2)]), (0.5,))
    with pytest.raises(UserError, match="adding rows to a run needs timestamps"):
        with_later(stream, data([("ann", "tea", 5), ("ann", "tea", 6)], positions=True), 0)
