"""Embeddings, perceptrons, and a network for each task."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.msmt.naive_network import SCHEMA, SIZES, Naive, drawn, moved, shaken

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Inputs, mlp, tower
from coterie.msmt.models.make import SingleTask
from coterie.msmt.settings import ModelSettings

KEY = Key.from_seed(0)
close = pytest.approx


def test_inputs_are_embeddings_end_to_end() -> None:
    inputs, batch = shaken(Inputs(SCHEMA, 3)), drawn(SCHEMA, 6)
    state = {f"inputs.{name}": value for name, value in inputs.state_dict().items()}
    naive = Naive(inputs)
    naive.state = {name: value.numpy() for name, value in state.items()}
    assert inputs.n_features == 9
    assert inputs(batch).tolist() == [close(row, abs=1e-12) for row in naive.embed(batch)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.uint32])
def test_ids_may_be_of_any_integer_dtype(dtype: torch.dtype) -> None:
    inputs, batch = Inputs(SCHEMA, 3).double(), drawn(SCHEMA, 6)
    other = batch | {"ids": batch["ids"].to(dtype), "numbers": batch["numbers"].float()}
    assert torch.allclose(inputs(batch), inputs(other), atol=1e-6)


@pytest.mark.parametrize(("vocabularies", "n_numbers", "length"), [((), 4, 3), ((5, 2), 0, 6)])
def test_one_kind_of_field_is_enough(
    vocabularies: tuple[int, ...], n_numbers: int, length: int
) -> None:
    schema = Schema(("click", "buy"), ("NL", "ES"), vocabularies, n_numbers, funnel=True)
    inputs, batch = Inputs(schema, 3).double(), drawn(schema, 5)
    assert inputs(batch).shape == (5, length)


def test_samples_without_fields_are_refused() -> None:
    with pytest.raises(UserError, match="no fields"):
        Inputs(Schema(("click",), ("NL",), (), 0), 3)


def test_tables_start_within_xavier_bounds() -> None:
    with KEY.fold("start").torch_rng():
        inputs = Inputs(Schema(("click",), ("NL",), (2000,), 0), 16)
    table = next(inputs.parameters())
    bound = (6 / (2000 + 16)) ** 0.5
    assert bound * 0.99 < table.abs().max() <= bound
    assert table.std().item() == close(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_perceptron(training: bool, norm: bool) -> None:
    network = shaken(mlp(3, (4, 2), 0.0, norm)).train(training)
    x = KEY.fold("x").normal(6, 3, dtype=torch.float64)
    naive = Naive(network, training)
    naive.state = {f"all.{name}": value for name, value in naive.state.items()}
    assert network(x).tolist() == [close(row, abs=1e-10) for row in naive.mlp("all", x.tolist())]


def test_dropout_and_sizes_are_those_of_the_settings() -> None:
    layers: Any = tower(5, ModelSettings(tower_layers=(4,), dropout=0.3))
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"]
    assert layers[0].weight.shape == (4, 5)
    assert layers[4].weight.shape == (1, 4)
    assert layers[3].p == 0.3
    without = tower(5, ModelSettings(tower_layers=(4,), mlp_norm=False))
    assert [type(layer).__name__ for layer in without] == ["Linear", "ReLU", "Dropout", "Linear"]


@pytest.mark.parametrize("training", [False, True])
def test_single_task_network(training: bool) -> None:
    network, batch = shaken(SingleTask(SCHEMA, SIZES)).train(training), drawn(SCHEMA, 7)
    naive = Naive(network, training)
    found = []
    for task in ("tasks.0", "tasks.1"):
        x = naive.embed(batch, f"{task}.inputs")
        found.append(naive.mlp(f"{task}.tower", naive.mlp(f"{task}.expert", x), True))
    expected = np.array(found)[:, :, 0].T
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-10


def test_single_tasks_share_nothing() -> None:
    network, batch = shaken(SingleTask(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 7)
    network.logits(batch)[:, 0].sum().backward()
    touched = {name for name, value in network.named_parameters() if moved(value)}
    assert touched == {name for name, _ in network.named_parameters() if name[:7] == "tasks.0"}
