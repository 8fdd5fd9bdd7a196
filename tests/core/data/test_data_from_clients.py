"""Samples of clients are stacked as they were given, or refused in one line."""

import numpy as np
import pytest
import torch

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError


def client(x=2, **more):
    return {"x": torch.ones(x, 3)} | {name: torch.ones(rows) for name, rows in more.items()}


MISTAKES = {
    "nobody": ([], None, "there are no samples"),
    "no field": ([{}], None, "there are no samples"),
    "a field more": ([client(), client(y=2)], None, "client 1 has the fields x, y, the first"),
    "a field less": ([client(y=2), client()], None, "client 1 has the fields x, the first"),
    "rows": ([client(2, y=3)], [7], "client 7 has rows of unequal numbers: 2 of 'x', 3 of 'y'"),
    # Which stacked are five of each.
    "rows that fit together": ([client(2, y=3), client(3, y=2)], None, "client 0 has rows of"),
    "an array": ([{"x": np.ones(2)}], None, "'x' of client 0 must be a tensor"),
    "a list": ([client(), {"x": [1.0]}], None, "'x' of client 1 must be a tensor"),
    "a number": ([{"x": torch.tensor(1.0)}], None, "one row a sample"),
    "ids twice": ([client(), client()], [4, 4], "ids must ascend"),
    "ids that descend": ([client(), client()], [4, 3], "ids must ascend"),
    "too few ids": ([client(), client()], [4], "one for each of 2 clients"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(mistake):
    clients, ids, words = MISTAKES[mistake]
    with pytest.raises(UserError, match=words) as caught:
        SampleData.from_clients(clients, ids)
    assert "\n" not in str(caught.value)


def test_what_is_given_is_stacked():
    data = SampleData.from_clients([client(2, y=2), client(0, y=0), client(1, y=1)], [-5, 0, 9])
    assert data.ids.tolist() == [-5, 0, 9]
    assert data.lengths.tolist() == [2, 0, 1]
    assert data.samples["x"].shape == (3, 3)


def test_parts_of_other_fields_are_one_line():
    train, other = (SampleData.from_clients([one]) for one in (client(y=2), client()))
    for parts in ({"valid": other}, {"test": other}):
        with pytest.raises(UserError, match="have the fields x, y, others x"):
            SplitSamples.of(train, **parts)
