"""Cells of a matrix against scipy's sparse matrices and dense tables."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from coterie.core.data.interactions.cells import Cells
from coterie.core.tensors.ordering import ascending


@st.composite
def matrices(draw):
    """Cells in any order: rows, columns, values, shape; zeros among the values."""
    n_rows, n_columns = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    place = draw(st.lists(st.integers(0, n_rows * n_columns - 1), unique=True, max_size=40))
    place = torch.tensor(place, dtype=torch.int64)
    values = torch.arange(place.numel()).float()
    return place // n_columns, place % n_columns, values, n_rows, n_columns


def csr(rows, columns, values, n_rows, n_columns):
    """The same by scipy; explicit zeros stay."""
    found = sparse.csr_matrix((values, (rows, columns)), shape=(n_rows, n_columns))
    found.sort_indices()
    return found


def assert_equal(cells, wanted):
    wanted = wanted.tocsr().sorted_indices()
    assert (cells.n_rows, cells.n_columns) == wanted.shape
    assert cells.columns.offsets.tolist() == wanted.indptr.tolist()
    assert cells.columns.values.tolist() == wanted.indices.tolist()
    assert cells.values.tolist() == wanted.data.tolist()
    assert cells.values.dtype == torch.float32
    assert len(cells) == wanted.nnz


@given(matrices())
def test_pairs_are_sorted_as_scipy_sorts_them(matrix):
    cells = Cells.from_pairs(*matrix)
    assert_equal(cells, csr(*matrix))
    assert cells.rows.tolist() == csr(*matrix).tocoo().row.tolist()


@given(matrices())
def test_transposed(matrix):
    assert_equal(Cells.from_pairs(*matrix).transposed(), csr(*matrix).T)


@given(matrices(), st.data())
def test_rows_are_taken_in_any_order_and_more_than_once(matrix, data):
    n_rows = matrix[3]
    index = data.draw(st.lists(st.integers(0, n_rows - 1), max_size=9))
    taken = Cells.from_pairs(*matrix).take(torch.tensor(index, dtype=torch.int64))
    assert_equal(taken, csr(*matrix)[index])


@given(matrices(), st.data())
def test_columns_are_kept_and_numbered_anew(matrix, data):
    n_columns = matrix[4]
    index = sorted(data.draw(st.sets(st.integers(0, n_columns - 1))))
    kept = Cells.from_pairs(*matrix).of_columns(torch.tensor(index, dtype=torch.int64))
    assert_equal(kept, csr(*matrix)[:, index])


@given(matrices())
def test_dense_has_the_cells_and_nothing_else(matrix):
    rows, columns, values, n_rows, n_columns = matrix
    wanted = [[-1.0] * n_columns for _ in range(n_rows)]
    for row, column, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True):
        wanted[row][column] = value
    assert Cells.from_pairs(*matrix).to_dense(-1.0).tolist() == wanted


@pytest.mark.parametrize("above", [50, 1 << 62])  # the fast way, and the one for large numbers
@given(st.lists(st.integers(0, 49), max_size=60))
def test_order_is_that_of_a_stable_sort(above, numbers):
    found = ascending(torch.tensor(numbers, dtype=torch.int64), above)
    assert found.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)


@pytest.mark.parametrize("above", [1 << 60, 1 << 62])  # the last of the fast way, and beyond
def test_order_of_large_numbers(above):
    # Seven numbers need three bits for their places, which leaves sixty.
    numbers = torch.tensor([above - 1, 0, above - 2, 5, 5, 1, above - 1])
    assert ascending(numbers, above).tolist() == [1, 5, 3, 4, 2, 0, 6]


@pytest.mark.parametrize(
    ("row", "column", "what"),
    [
        ([0, 1, 0], [2, 0, 2], "row 0 and column 2 is there twice"),
        ([0, 2, 1], [0, 0, 0], "row numbers run from 0 to 2, outside 0..1"),
        ([0, 1, 1], [0, 3, 1], "column numbers run from 0 to 3, outside 0..2"),
    ],
)
def test_impossible_cells_are_refused(row, column, what):
    with pytest.raises(ValueError, match=what):
        Cells.from_pairs(torch.tensor(row), torch.tensor(column), torch.ones(3), 2, 3)


@pytest.mark.parametrize("index", [[1, 0], [1, 1], [3]])
def test_columns_to_keep_must_ascend_and_be_there(index):
    cells = Cells.from_pairs(torch.tensor([0]), torch.tensor([1]), torch.ones(1), 1, 3)
    with pytest.raises(ValueError, match=r"ascend|outside"):
        cells.of_columns(torch.tensor(index))
