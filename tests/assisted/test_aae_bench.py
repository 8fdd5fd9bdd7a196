"""The benchmark of the autoencoder: its loop trains as ours does, and its rows are complete."""

import math
from dataclasses import replace

import pytest
import torch

from coterie.assisted.bench import measure, sizes
from coterie.assisted.bench.sizes import Size
from coterie.core.bench.hardware import Limits
from coterie.core.tensors.keys import Key

SMALL = Size("small", 30, 40, 300, 4, 7, (("profile", 3),))


def test_all_ways_train_alike():
    compared = measure.Compared(SMALL, torch.float64, hidden=8)
    far = compared.differences()
    assert far.keys() == {"autograd", "loop"}
    assert max(far.values()) < 1e-12


def test_a_difference_is_noticed():
    compared = measure.Compared(SMALL, torch.float64, hidden=8)
    compared.plan = replace(compared.plan, lr=2e-3)  # of the others, not of ours
    assert min(compared.differences().values()) > 1e-6


def test_the_loops_own_epoch_lowers_the_loss():
    loop = measure.Compared(SMALL, torch.float64, hidden=8).loop()
    losses = [loop.epoch() for _ in range(40)]
    assert losses[-1] < losses[0]


def test_rows_are_complete(monkeypatch):
    monkeypatch.setattr(Limits, "measured", staticmethod(lambda: Limits(1e9, 1e9)))
    rows = list(measure.bench([SMALL], turns=1, epochs=1))
    assert [row["reference"] is None for row in rows] == [False] * 5 + [True]
    for row in rows[:-1]:
        assert 0 < row["ours"] < math.inf
        assert row["ratio"] == pytest.approx(row["reference"] / row["ours"])
    assert rows[-1]["ours"] == pytest.approx(4 * rows[0]["ours"] / 1e3)


def test_operations_are_counted():
    compared = measure.Compared(SMALL, hidden=8)
    sparse, dense = measure.operations(compared.network, compared.drawn)
    nnz, own = compared.drawn.pattern.nnz, len(compared.drawn.inputs.values)
    inner = 3 * 6 * 30 * 8 * 4 + 4 * 30 * 8 * 3 + 4 * own * 8
    assert sparse == inner + 6 * nnz * 8
    assert dense == inner + 6 * 30 * 40 * 8


@pytest.mark.parametrize("size", [sizes.ML_100K, sizes.ML_1M], ids=["ML-100K", "ML-1M"])
def test_random_data_have_their_size(size):
    drawn = sizes.draw(size, Key.from_seed(0))
    assert drawn.pattern.nnz == size.ratings
    assert drawn.inputs.n_columns == -(-size.columns // size.organisations)
    assert len(drawn.inputs) == len(drawn.pattern) == size.rows
    assert drawn.pattern.columns.lengths.min() > 0
    stars = drawn.inputs.values.unique()
    assert stars.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    own = drawn.inputs
    places = own.places[own.columns.values] + own.columns.rows * size.columns
    cells = drawn.pattern.columns
    assert torch.isin(places, cells.values + cells.rows * size.columns).all()
