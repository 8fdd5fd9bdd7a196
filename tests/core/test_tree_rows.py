"""Values a client that broadcast over stacked tensors, and the choice of clients by them."""

import re
from pathlib import Path

import pytest
import torch

from coterie.core.tensors import tree

ROOT = Path(__file__).parents[2]
BY_HAND = re.compile(r"reshape\([^()]*, \*\[1\] \*")


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 4, 5), (3, 0)])
def test_columns_multiply_every_client_by_its_own_value(shape: tuple[int, ...]) -> None:
    rows, like = torch.tensor([2.0, 3.0, 5.0]), torch.rand(shape, dtype=torch.float64)
    found = tree.columns(rows, like) * like
    assert found.shape == like.shape
    for client, value in enumerate(rows.tolist()):
        assert torch.equal(found[client], value * like[client])


def test_where_rows_copies_whole_clients_bit_for_bit() -> None:
    these = {"b": torch.full((3, 2), torch.nan), "a": torch.arange(3)}
    others = {"a": -torch.arange(3), "b": torch.zeros(3, 2)}
    found = tree.where_rows(torch.tensor([False, True, False]), these, others)
    assert list(found) == ["b", "a"]
    assert found["a"].tolist() == [0, 1, -2]
    assert found["b"].isnan().all(1).tolist() == [False, True, False]
    assert found["b"][0].tolist() == [0.0, 0.0]


def test_nobody_writes_the_shape_out_again() -> None:
    sources = [*ROOT.glob("shared/src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]
    assert len(sources) > 100
    again = [p.name for p in sources if BY_HAND.search(p.read_text()) and p.name != "tree.py"]
    assert again == []
