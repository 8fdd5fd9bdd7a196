"""Examples and queries against plain loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import UserError
from coterie.core.tensors.stacked import Ragged
from coterie.llm.data.examples import GlobalSplit, evaluation_queries, newest, training_examples

lists = st.lists(st.lists(st.integers(0, 99), max_size=25), min_size=1, max_size=8)


def naive_examples(rows, max_history, stride, min_history):
    found = []
    for user, items in enumerate(rows):
        n = len(items)
        if n < 2:
            continue
        positions = range(n - 1, min(min_history, n - 1) - 1, -stride)
        for position in reversed(positions):
            history = items[max(0, position - max_history) : position]
            found.append((user, history, items[position]))
    return found


@given(lists, st.integers(1, 12), st.integers(1, 4), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_examples_equal_a_plain_loop(rows, max_history, stride, least):
    least = min(least, max_history) or None
    examples, user = training_examples(
        Ragged.from_lists(rows), max_history, stride, min_history=least
    )
    made = list(
        zip(user.tolist(), examples.history.tolists(), examples.target.tolist(), strict=True)
    )
    assert made == naive_examples(rows, max_history, stride, least or max_history)
    assert all(1 <= len(history) <= max_history for _, history, _ in made)


def test_the_papers_rule_by_hand():
    examples, user = training_examples(Ragged.from_lists([list(range(12)), [7, 8, 9], [5], []]))
    assert examples.history.tolists() == [list(range(10)), list(range(1, 11)), [7, 8]]
    assert examples.target.tolist() == [10, 11, 9]
    assert user.tolist() == [0, 0, 1]


@pytest.mark.parametrize("rows", [[], [[]], [[3]], [[], [1]]])
def test_nobody_has_two_items(rows):
    examples, user = training_examples(Ragged.from_lists(rows))
    assert len(examples) == user.numel() == len(examples.history) == 0
    assert len(examples.take(torch.tensor([], dtype=torch.int64))) == 0


@pytest.mark.parametrize(
    "wrong", [{"max_history": 0}, {"stride": 0}, {"min_history": 0}, {"min_history": 11}]
)
def test_impossible_lengths(wrong):
    with pytest.raises(UserError, match=r"choose at least 1 for each"):
        training_examples(Ragged.from_lists([[1, 2]]), **wrong)


@given(lists, st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_newest(rows, count):
    assert newest(Ragged.from_lists(rows), count).tolists() == [row[-count:] for row in rows]


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 9), max_size=6)] * 3), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_queries_equal_a_plain_loop(users):
    train, valid, test = map(list, zip(*users, strict=True))
    split = GlobalSplit(*map(Ragged.from_lists, (train, valid, test)))
    both = [a + b for a, b in zip(train, valid, strict=True)]
    for part, seen, targets in (("valid", train, valid), ("test", both, test)):
        queries = evaluation_queries(split, part, 3)
        wanted = [
            (user, had[-3:], had, want)
            for user, (had, want) in enumerate(zip(seen, targets, strict=True))
            if had and want
        ]
        made = zip(
            queries.user.tolist(),
            queries.history.tolists(),
            queries.seen.tolists(),
            queries.targets.tolists(),
            strict=True,
        )
        assert list(made) == wanted
        assert len(queries.take(torch.arange(len(queries)).flip(0))) == len(wanted)
