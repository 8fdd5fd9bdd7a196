"""Sums of uploads as they arrive, against a loop over the clients."""

from __future__ import annotations

import pytest
import torch
from tests.core.few_rows import GROUPS, by_hand, factored, forms

from coterie.core.protocol import uploads
from coterie.core.protocol.uploads import Sum, weighted_sum
from coterie.core.tensors.stacked import Ragged


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("weigh", [None, torch.float64, torch.int64])
def test_every_field_is_summed_with_the_clients_weights(form, group, weigh):
    """Changes of rows too, in each of their forms."""
    rows, clients = factored(*group), group[1]
    values = torch.randn(clients, 2, generator=torch.Generator().manual_seed(3)).double()
    weight = None if weigh is None else (2 * torch.arange(clients) + 3).to(weigh)
    found = weighted_sum({"items": forms(rows)[form], "head": values}, weight)
    factors = [1.0] * clients if weight is None else weight.tolist()
    tables = by_hand(rows)
    items = sum(w * table for w, table in zip(factors, tables, strict=True))
    head = sum(w * row for w, row in zip(factors, values, strict=True))
    assert found["items"].n_clients == 1
    torch.testing.assert_close(found["items"].sum(), items, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found["head"], head, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("count", [2, uploads._LARGE])
def test_a_sum_keeps_the_wider_of_both_types(count):
    values, weight = torch.ones(3, count), torch.tensor([1.0, 2.0, 1e-12], dtype=torch.float64)
    assert weighted_sum({"a": values}, weight)["a"].tolist() == pytest.approx(
        [3.0 + 1e-12] * count, rel=1e-15
    )
    assert weighted_sum({"a": values}, torch.tensor([1, 2, 3]))["a"].dtype == torch.float32
    assert weighted_sum({"a": values[:0]}, weight[:0].float())["a"].tolist() == [0.0] * count


@pytest.mark.parametrize("weights", [[3, 0, 5], [0.25, 1.5, -2.0]])
def test_large_values_are_summed_as_small_ones(weights):
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(3, 4, uploads._LARGE, generator=generator)
    found = weighted_sum({"a": values}, torch.tensor(weights))["a"]
    expected = sum(weight * value.double() for weight, value in zip(weights, values, strict=True))
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_the_sum_of_parts_is_the_sum(cut):
    rows, fold = factored([0, 3, 1, 1], 5), Sum()
    whole = fold.of({"items": rows})
    parts = [fold.of({"items": rows.take(i)}) for i in torch.arange(5).split(cut)]
    total = parts[0]
    for part in parts[1:]:
        total = fold.merge(total, part)
    torch.testing.assert_close(total["items"].sum(), whole["items"].sum())
    torch.testing.assert_close(whole["items"].sum(), by_hand(rows).sum(0))


def test_a_fold_made_of_another_is_not_known_by_its_name():
    """Else every node would fold by it, or by the other in its place."""

    class Halved(Sum):
        def of(self, up):
            return {"a": up["a"].sum(0) / 2}

    assert Halved().to_plain() is None
    assert type(Sum.from_plain({"name": "sum"})) is Sum


def test_rows_of_unequal_length_have_no_sum():
    with pytest.raises(TypeError, match="a Ragged cannot be summed over clients"):
        weighted_sum({"tokens": Ragged.from_lists([[1], [2, 3]])})
