"""Products with sparse cells against dense ones."""

import pytest
import torch

from coterie.assisted.aae.cells import Inputs, Pattern, _transposed_by_sorting, transposed
from coterie.core.tensors.stacked import Ragged


def numbers(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def random_cells(rows, columns, share, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < share
    table = torch.randn(rows, columns, generator=generator, dtype=torch.float64) * mask
    row, column = mask.nonzero(as_tuple=True)
    return Pattern(Ragged.from_pairs(row, column, rows), columns), mask, table


def close(one, other):
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("columns", [11, 70_000])
@pytest.mark.parametrize("size", [2, 5, 9])  # with a smaller batch at the end, one, one too large
def test_products_equal_dense_ones(share, columns, size):
    pattern, mask, table = random_cells(9, columns, share)
    rows = torch.tensor([7, 2, 3, 8, 0])
    made = pattern.batches(rows, size)
    of_batches = made.take(table[mask])
    assert len(made.cells) == len(of_batches) == -(-5 // size)
    for cells, values, part in zip(made.cells, of_batches, rows.split(size), strict=True):
        seen, dense = mask[part], table[part]
        assert torch.equal(values, dense.T[seen.T])
        assert torch.equal(cells.in_rows(values), dense[seen])
        left, right = numbers(len(part), 4), numbers(columns, 4)
        assert close(cells.times(values, right), dense @ right)
        assert close(cells.transposed_times(values, left), dense.T @ left)
        assert close(cells.column_sums(values), dense.sum(0))
        assert close(cells.dots(left, right), (left @ right.T).T[seen.T])


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_sorting_gives_what_scipy_gives(share):
    _, mask, _ = random_cells(9, 11, share)
    row, column = mask.nonzero(as_tuple=True)
    start = torch.searchsorted(row, torch.arange(10)).int()
    ours, others = (way(start, column.int(), 11) for way in (transposed, _transposed_by_sorting))
    for one, other in zip(ours, others, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype == torch.int32


def test_no_rows_have_no_cells():
    pattern, _, _ = random_cells(5, 4, 0.5)
    made = pattern.batches(torch.arange(0), 2)
    assert made.cells == []
    assert len(made.place) == 0


def test_columns_out_of_range_are_refused():
    for column in (-1, 3):
        with pytest.raises(ValueError, match=r"0\.\.2"):
            Pattern(Ragged.from_lists([[column]]), 3)
        with pytest.raises(ValueError, match=r"0\.\.2"):
            Inputs(Ragged.from_lists([[column]]), torch.ones(1), 3)


def test_inputs_that_do_not_fit_are_refused():
    cells = Ragged.from_lists([[0], [1]])
    with pytest.raises(ValueError, match="each cell"):
        Inputs(cells, torch.ones(3), 2)
    with pytest.raises(ValueError, match="profile"):
        Inputs(cells, torch.ones(2), 2, {"profile": torch.ones(3, 1)})
    with pytest.raises(ValueError, match="places"):
        Inputs(cells, torch.ones(2), 2, places=torch.arange(3))
