"""How clients are cut into chunks: everybody once, equal work together, no more than fits."""

from itertools import chain, pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.federation.in_process import WORKING_MEMORY, InProcess


def cut(work, footprint, chunk=None):
    """Chunks of clients with this work and so many bytes, as lists of positions."""
    client = SimpleNamespace(
        form="stacked",
        concurrent=True,
        work=lambda data: None if work is None else torch.tensor(work),
        footprint=lambda data, down: None if footprint is None else torch.tensor(footprint),
    )
    ids = torch.arange(len(footprint if work is None else work))
    exchange = InProcess(client, [], lambda ids: None, chunk)
    return [part.tolist() for part in exchange._chunks(SimpleNamespace(ids=ids), None)]


SIZES = st.lists(st.integers(1, WORKING_MEMORY // 4), min_size=1, max_size=30)


@settings(max_examples=80, deadline=None)
@given(SIZES, st.data())
def test_chunks_hold_equal_work_and_what_fits(footprint, draws):
    work = draws.draw(st.lists(st.integers(0, 5), min_size=len(footprint), max_size=len(footprint)))
    chunks = cut(work, footprint)
    assert sorted(chain(*chunks)) == list(range(len(work)))
    assert all(part == sorted(part) for part in chunks)
    for one, other in pairwise(chunks):
        assert min(work[client] for client in one) >= max(work[client] for client in other)
    # A client is in the chunk in whose memory it begins, so the last one may stand out.
    most = WORKING_MEMORY + max(footprint)
    assert all(sum(footprint[client] for client in part) <= most for part in chunks)
    if sum(footprint) <= WORKING_MEMORY:
        assert chunks == [list(range(len(work)))]


@pytest.mark.parametrize("work", [None, [1, 5, 1, 5, 5]])
@pytest.mark.parametrize("footprint", [None, [10**12] * 5])
def test_a_number_of_clients_is_a_number_of_clients(work, footprint):
    if work or footprint:
        chunks = cut(work, footprint, chunk=2)
        assert chunks == ([[0, 1], [2, 3], [4]] if work is None else [[1, 3], [0, 4], [2]])
        assert cut(work, footprint, chunk=9) == [[0, 1, 2, 3, 4]]


def test_nobody_is_in_no_chunk_and_who_tells_no_size_is_in_the_only_one():
    assert cut([], None) == []
    assert cut([3, 1, 2], None) == [[0, 1, 2]]


def test_what_a_chunk_takes_is_that_of_its_own_clients():
    fourth = WORKING_MEMORY // 4
    assert cut([1] * 5, [fourth] * 5) == [[0, 1, 2, 3], [4]]
    few, many = [1] * 4, [fourth] * 8
    chunks = [[4, 5, 6, 7], [8, 9, 10, 11], [0, 1, 2, 3]]
    assert cut([0] * 4 + [1] * 8, few + many) == chunks
