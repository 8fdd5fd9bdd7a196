"""Cutting samples in parts: all kept, none in two parts, sizes by the shares."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.page.data.make import cut_clients, cut_server

KEY = Key.from_seed(3)


def samples_of(n):
    numbers = torch.arange(n)
    return {"x": numbers[:, None] * torch.tensor([1.0, 10.0]), "y": numbers % 7}


def parts_of(split):
    return split.train, split.valid, split.test


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    test_share=st.floats(0, 0.99),
    valid_share=st.floats(0, 0.99),
    keyed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_of_a_client_is_in_one_of_its_parts(lengths, test_share, valid_share, keyed):
    n = sum(lengths)
    rows = Ragged.from_lengths(torch.arange(n).flip(0), torch.tensor(lengths))
    key = KEY if keyed else None
    split = cut_clients(samples_of(n), rows, key, test_share=test_share, valid_share=valid_share)
    for client, row in enumerate(rows.tolists()):
        mine = [part.take(torch.tensor([client])).samples for part in parts_of(split)]
        numbers = torch.cat([part["x"][:, 0] for part in mine])
        assert sorted(numbers.tolist()) == sorted(row)
        assert torch.equal(torch.cat([part["y"] for part in mine]), numbers.long() % 7)
        if row:
            assert len(mine[0]["y"]) >= 1


def test_default_shares_are_those_of_the_paper():
    rows = Ragged.from_lists([list(range(500)), list(range(500, 800)), [800], []])
    split = cut_clients(samples_of(801), rows, KEY)
    assert split.test.lengths.tolist() == [150, 90, 0, 0]
    assert split.valid.lengths.tolist() == [35, 21, 0, 0]
    assert split.train.lengths.tolist() == [315, 189, 1, 0]


def test_without_a_key_the_last_samples_are_tested():
    rows = Ragged.from_lists([[4, 5, 6, 7, 8, 9], [0, 1, 2, 3]])
    split = cut_clients(samples_of(10), rows, None, test_share=0.5, valid_share=0.5)
    assert [part.samples["x"][:, 0].tolist() for part in parts_of(split)] == [
        [4, 5, 0],
        [6, 1],
        [7, 8, 9, 2, 3],
    ]


def test_shuffles_differ_by_key_and_other_clients_leave_them_alone():
    rows = Ragged.from_lists([list(range(40)), list(range(40, 60))])
    first, again, other = (
        cut_clients(samples_of(60), rows, key).test.samples["y"] for key in (KEY, KEY, KEY.fold(1))
    )
    alone = cut_clients(samples_of(60), rows.take(torch.tensor([0])), KEY).test
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[:12], alone.samples["y"])


def test_server_samples_are_cut_at_random():
    valid, test = cut_server(samples_of(1000), KEY)
    assert (len(valid["y"]), len(test["y"])) == (200, 800)
    numbers = valid["x"][:, 0]
    assert abs(numbers.mean() - 499.5) < 60
    assert sorted(torch.cat([numbers, test["x"][:, 0]]).tolist()) == list(range(1000))
    assert not torch.equal(numbers, cut_server(samples_of(1000), KEY.fold(1))[0]["x"][:, 0])


@pytest.mark.parametrize("n", [0, 1])
def test_a_server_with_hardly_any_samples_tests_by_them(n):
    valid, test = cut_server(samples_of(n), KEY)
    assert (len(valid["y"]), len(test["y"])) == (0, n)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_shares_outside_of_the_range_are_refused(share):
    rows = Ragged.from_lists([[0, 1]])
    with pytest.raises(UserError, match="test_share"):
        cut_clients(samples_of(2), rows, KEY, test_share=share)
    with pytest.raises(UserError, match="valid_share"):
        cut_clients(samples_of(2), rows, KEY, valid_share=share)
    with pytest.raises(UserError, match="server_valid_share"):
        cut_server(samples_of(2), KEY, valid_share=share)
