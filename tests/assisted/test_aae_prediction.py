"""Prediction at cells against the plain module's full output."""

import pytest
import torch
from tests.assisted.plain_aae import KEY, Task, dense, ragged

from benchmarks.assisted.loop import PlainAAE
from coterie.assisted.aae import network as prediction
from coterie.assisted.aae.cells import Pattern
from coterie.assisted.aae.network import AAE, predict
from coterie.core.tensors.stacked import Ragged


def plain(network, params, ratings, sides):
    module = PlainAAE(network).double().load(params).eval()
    return module({"ratings": ratings, **sides}).detach()


@pytest.fixture
def trained():
    task = Task(sides=("profile",))
    network = AAE(7, 19, {"profile": 2}, hidden=6, code=3)
    params = network.start(KEY, torch.float64)
    params = {name: value + 0.1 * torch.randn_like(value) for name, value in params.items()}
    own = dense(task.inputs.columns, task.inputs.values, 7)
    return task, network, params, plain(network, params, own, task.sides)


@pytest.mark.parametrize(("rows", "cells"), [(4, 1000), (1024, 12), (1024, 2), (1024, 1000)])
def test_predictions_equal_the_plain_modules(trained, monkeypatch, rows, cells):
    task, network, params, expected = trained
    monkeypatch.setattr(prediction, "_ROWS", rows)
    monkeypatch.setattr(prediction, "_CELLS", cells)
    found = predict(network, params, task.inputs, task.pattern)
    assert torch.allclose(found, expected[task.mask], rtol=0, atol=1e-13)
    other = torch.rand(expected.shape) < 0.2
    found = predict(network, params, task.inputs, ragged(other))
    assert torch.allclose(found, expected[other], rtol=0, atol=1e-13)


def test_cells_keep_their_order(trained):
    task, network, params, expected = trained
    cells = Ragged.from_lists([[5, 1]] + [[]] * 22)
    found = predict(network, params, task.inputs, cells)
    assert torch.allclose(found, expected[0, [5, 1]], rtol=0, atol=1e-13)


def test_no_cells_and_no_rows(trained):
    task, network, params, _ = trained
    nothing = Ragged.from_lists([[]] * 23)
    assert predict(network, params, task.inputs, nothing).shape == (0,)


def test_cells_that_do_not_fit_are_refused(trained):
    task, network, params, _ = trained
    with pytest.raises(ValueError, match="rows"):
        predict(network, params, task.inputs, Ragged.from_lists([[1]]))
    with pytest.raises(ValueError, match="column"):
        predict(network, params, task.inputs, Ragged.from_lists([[19]] * 23))


def test_a_part_has_few_rows_and_few_cells(monkeypatch):
    monkeypatch.setattr(prediction, "_ROWS", 3)
    monkeypatch.setattr(prediction, "_CELLS", 4)
    rows = [[0, 1], [2], [3], [1], [], [], [], [0, 1, 2, 3, 4], [2, 3], [1, 2]]
    parts = prediction._parts(Pattern(Ragged.from_lists(rows), 5))
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3], [7], [8, 9]]  # 4 to 6 have none
