"""Changes of rows do what their dense tables do, also where a client changed nothing at all."""

import pytest
import torch
from tests.core.few_rows import GROUPS, N, by_hand, factored, forms, sparse

from coterie.core.kernels import products, switch
from coterie.core.tensors import tree


@pytest.mark.parametrize("form", [0, 1, 2, 3])
@pytest.mark.parametrize("first", GROUPS)
@pytest.mark.parametrize("second", GROUPS)
def test_two_groups_of_clients_one_after_the_other(form, first, second):
    """Nobody's change becomes another's, whoever has no term."""
    one, other = factored(*first), factored(*second, seed=1)
    both = tree.concatenate({"items": forms(one)[form]}, {"items": forms(other)[form]})["items"]
    expected = torch.cat([by_hand(one), by_hand(other)])
    assert both.n_clients == first[1] + second[1]
    torch.testing.assert_close(both.dense(), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(both.wire().dense(), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(both.sum(), expected.sum(0), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("form", [0, 1, 2, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_what_is_taken_of_each_client_is_its_own(form, group):
    rows, expected = factored(*group), by_hand(factored(*group))
    factor = torch.arange(1.0, group[1] + 1, dtype=torch.float64)
    for index in (torch.arange(group[1]), torch.tensor([group[1] - 1]), torch.arange(0)):
        part = forms(rows)[form].take(index)
        torch.testing.assert_close(part.dense(), expected[index], rtol=1e-14, atol=0)
        norm = expected[index].square().sum((1, 2))
        torch.testing.assert_close(part.squared_norm(), norm, rtol=1e-12, atol=1e-15)
    scaled = forms(rows)[form].scaled(factor).dense()
    torch.testing.assert_close(scaled, factor[:, None, None] * expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("group", GROUPS)
def test_sparse_factors(group, kernels):
    """Sums, counts and bounds, by compiled loops and without."""
    assert products.kept_in  # they are loaded
    rows, tables = factored(*group), by_hand(factored(*group))
    mine = sparse(rows)
    with switch.kernels(kernels):
        torch.testing.assert_close(mine.sum(), tables.sum(0), rtol=1e-13, atol=1e-15)
        assert torch.equal(mine.touched(), (tables != 0).any(2).sum(1))
        assert torch.equal(mine.nbytes(), rows.nbytes())
    assert mine.table_shape == (N, 3)
    assert torch.equal(mine.wire().index.values, rows.wire().index.values)
    with switch.kernels(kernels):
        _norms(mine, tables, group)


def _norms(mine, tables, group):
    norm = tables.square().sum((1, 2)).sqrt()
    assert bool((mine.norm_bound() >= norm * (1 - 1e-12)).all())
    terms = [left.abs().sum() for left in mine.left.split(mine.offsets.diff().tolist())]
    sizes = [left * right.norm() for left, right in zip(terms, mine.right, strict=True)]
    for client in range(group[1]):
        own = [size for size, owner in zip(sizes, mine.owner, strict=True) if owner == client]
        assert float(mine.norm_bound()[client]) == pytest.approx(float(sum(own)), rel=1e-12)
    assert bool(mine.finite().all())
    if group[0]:
        for part in (mine.left, mine.right.view(-1)):
            kept = float(part[0])
            part[0] = float("nan")
            broken = torch.arange(group[1]) == group[0][0]
            assert torch.equal(mine.finite(), ~broken)
            assert torch.equal(mine.norm_bound().isfinite(), ~broken)
            assert torch.equal(mine.squared_norm().isfinite(), ~broken)
            part[0] = kept
