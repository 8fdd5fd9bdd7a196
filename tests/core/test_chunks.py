"""How clients are cut into chunks: everybody once, equal work together, no more than fits."""

from itertools import chain, pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.federation.chunks import WORKING_MEMORY, chunks


def cut(work, footprint, chunk=None):
    """Chunks of clients with this work and so many bytes, as lists of positions."""
    client = SimpleNamespace(
        work=lambda data: None if work is None else torch.tensor(work),
        footprint=lambda data, down: None if footprint is None else torch.tensor(footprint),
    )
    data = SimpleNamespace(ids=torch.arange(len(footprint if work is None else work)))
    return [part.tolist() for part in chunks(client, data, None, WORKING_MEMORY, chunk)]


SIZES = st.lists(st.integers(1, WORKING_MEMORY // 4), min_size=1, max_size=30)


@settings(max_examples=80, deadline=None)
@given(SIZES, st.data())
def test_chunks_hold_equal_work_and_what_fits(footprint, draws):
    work = draws.draw(st.lists(st.integers(0, 5), min_size=len(footprint), max_size=len(footprint)))
    found = cut(work, footprint)
    assert sorted(chain(*found)) == list(range(len(work)))
    assert all(part == sorted(part) for part in found)
    for one, other in pairwise(found):
        assert min(work[client] for client in one) >= max(work[client] for client in other)
    # A client is in the chunk in whose memory it begins, so the last one may stand out.
    most = WORKING_MEMORY + max(footprint)
    assert all(sum(footprint[client] for client in part) <= most for part in found)
    if sum(footprint) <= WORKING_MEMORY:
        assert found == [list(range(len(work)))]


@pytest.mark.parametrize("work", [None, [1, 5, 1, 5, 5]])
@pytest.mark.parametrize("footprint", [None, [10**12] * 5])
def test_a_number_of_clients_is_a_number_of_clients(work, footprint):
    if work or footprint:
        found = cut(work, footprint, chunk=2)
        assert found == ([[0, 1], [2, 3], [4]] if work is None else [[1, 3], [0, 4], [2]])
        assert cut(work, footprint, chunk=9) == [[0, 1, 2, 3, 4]]


def test_nobody_is_in_no_chunk_and_who_tells_no_size_is_in_the_only_one():
    assert cut([], None) == []
    assert cut([3, 1, 2], None) == [[0, 1, 2]]


def test_what_a_chunk_takes_is_that_of_its_own_clients():
    fourth = WORKING_MEMORY // 4
    assert cut([1] * 4, [fourth] * 4) == [[0, 1, 2, 3]]
    assert cut([1] * 5, [fourth] * 5) == [[0, 1], [2, 3, 4]]
    few, many = [1] * 4, [fourth] * 8
    found = [[4, 5, 6, 7], [0, 1, 2, 3, 8, 9, 10, 11]]
    assert cut([0] * 4 + [1] * 8, few + many[:-1] + [fourth - 4]) == found


@pytest.mark.parametrize("clients", [5, 9, 35, 100, 1001])
def test_chunks_of_equal_clients_are_equal_and_even_in_number(clients):
    """So that two processes have the same to do."""
    counts = [len(part) for part in cut(None, [WORKING_MEMORY // 4] * clients)]
    assert len(counts) % 2 == 0
    assert max(counts) - min(counts) <= 1
    assert max(counts) <= 4
