"""What filters leave out, counted and kept beside the rows, against pandas."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.data.interactions.cells import rated
from coterie.core.data.interactions.interactions import Dropped, in_words, k_core
from coterie.core.data.sources.catalogue import load, load_filtered
from coterie.core.data.sources.sample import generate
from coterie.core.settings.sections import DataSettings

ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from("pqrst"),
        st.sampled_from([-2.5, 0.0, 1.0, 3.0, 4.0]),
    ),
    min_size=1,
    max_size=60,
)


def pairs(users, items, data):
    each = zip(users.tolist(), items.tolist(), strict=True)
    return {(data.user_names[user], data.item_names[item]) for user, item in each}


@given(ROWS, st.sampled_from([None, 3.0]), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_what_filters_leave_out_is_counted_and_stays_had(tmp_path_factory, rows, least, core):
    table = pd.DataFrame(rows, columns=["user", "item", "rating"])
    path = tmp_path_factory.mktemp("rows") / "r.csv"
    table.to_csv(path, index=False)
    kept, wanted = table, []
    steps = [("rated 0 or less", lambda rows: rows[rows.rating > 0])]
    if least is not None:
        steps.append(("rated below 3", lambda rows: rows[rows.rating >= least]))
    steps.append(("core", lambda rows: cored(rows, core)))
    for why, step in steps:
        after = step(kept)
        if len(after) < len(kept):
            users, items = (kept[c].nunique() - after[c].nunique() for c in ("user", "item"))
            wanted.append((why, len(kept) - len(after), len(kept), users, items))
        kept = after
    if not len(kept):
        return
    data = load_filtered(DataSettings(name=str(path), min_rating=least, min_interactions=core))
    found = [(each.why, each.rows, each.of, each.users, each.items) for each in data.dropped]
    assert [("core" if "core" in why else why, *counts) for why, *counts in found] == wanted
    users, items = set(kept.user), set(kept.item)
    had = {(u, i) for u, i, _ in rows if u in users and i in items}
    assert pairs(*data.had(), data) == had
    assert pairs(data.user, data.item, data) == set(zip(kept.user, kept.item, strict=True))


def cored(rows, core):
    while True:
        counts = [rows.groupby(c)[c].transform("size") for c in ("user", "item")]
        after = rows[(counts[0] >= core) & (counts[1] >= core)]
        if len(after) == len(rows):
            return rows
        rows = after


@given(ROWS)
@settings(max_examples=30, deadline=None)
def test_ratings_that_are_targets_count_whatever_their_sign(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "r.csv"
    table = pd.DataFrame(rows, columns=["user", "item", "rating"])
    table.to_csv(path, index=False)
    data = rated(load(path, targets=True))
    # Rows are in the order of their ids, so of equal pairs the lowest rating is first.
    ordered = table.assign(user=table.user.astype(str), item=table.item.astype(str)).sort_values(
        ["user", "item", "rating"]
    )
    first = ordered.drop_duplicates(["user", "item"])
    assert [data.user_names[user] for user in data.user.tolist()] == first.user.tolist()
    assert [data.item_names[item] for item in data.item.tolist()] == first.item.tolist()
    assert data.rating.tolist() == first.rating.tolist()
    assert sum(each.rows for each in data.dropped) == len(table) - len(first)


def test_nothing_is_noted_where_nothing_is_left_out():
    data = k_core(generate(), 0)
    assert data.dropped == ()
    assert data.had() == (data.user, data.item)


@pytest.mark.parametrize(
    ("dropped", "line"),
    [
        (Dropped("rated below 4", 1, 1), "left out: 1 of 1 row, rated below 4"),
        (
            Dropped("rated below 4", 2, 1_000_000, 1, 0),
            "left out: 2 of 1,000,000 rows, rated below 4 (1 user has none left)",
        ),
        (
            Dropped("x", 2, 3, 0, 2),
            "left out: 2 of 3 rows, x (2 items have none left)",
        ),
    ],
)
def test_a_filter_is_told_in_one_line(dropped, line):
    assert in_words([dropped, Dropped("nothing", 0, 9)]) == [line]
