"""PLE against loops over samples and experts, and against MMoE written out."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.msmt.naive_network import (
    SCHEMA,
    SIZES,
    Naive,
    Row,
    drawn,
    moved,
    shaken,
    softmax,
    weighted,
)
from torch import nn

from coterie.core.errors import UserError
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch
from coterie.msmt.models.ple import Ple
from coterie.msmt.settings import ModelSettings

THREE = Schema(("click", "cart", "buy"), ("NL", "ES"), (5, 4), 2, funnel=True)
SEVEN = ModelSettings(embedding=3, experts=7, expert_layers=(5, 4), tower_layers=(3,), dropout=0)


def naive_ple(network: Ple, batch: Batch, training: bool) -> np.ndarray:
    naive, n_tasks = Naive(network, training), network.schema.n_tasks
    streams = [naive.embed(batch)] * (n_tasks + 1)
    level: Any
    for number, level in enumerate(network.levels):
        name = f"levels.{number}"
        shared = [naive.mlp(f"{name}.shared.{e}", streams[-1]) for e in range(len(level.shared))]
        own = [
            [naive.mlp(f"{name}.own.{k}.{e}", streams[k]) for e in range(len(level.own[k]))]
            for k in range(n_tasks)
        ]
        found: list[list[Row]] = []
        for k in range(n_tasks):
            mine, rows = [*own[k], *shared], []
            for b, x in enumerate(streams[k]):
                gate = softmax(naive.linear(f"{name}.gates.{k}", x))
                rows.append(weighted(gate, [one[b] for one in mine]))
            found.append(rows)
        if number < len(network.levels) - 1:
            everyone, rows = [one for mine in own for one in mine] + shared, []
            for b, x in enumerate(streams[-1]):
                gate = softmax(naive.linear(f"{name}.shared_gate", x))
                rows.append(weighted(gate, [one[b] for one in everyone]))
            found.append(rows)
        streams = found
    return naive.towers(streams)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize(("schema", "settings"), [(SCHEMA, SIZES), (THREE, SEVEN)])
def test_ple(schema: Schema, settings: ModelSettings, levels: int, training: bool) -> None:
    network = shaken(Ple(schema, settings, levels=levels)).train(training)
    batch = drawn(schema, 7)
    expected = naive_ple(network, batch, training)
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-9


@pytest.mark.parametrize("training", [False, True])
def test_without_own_experts_it_is_mmoe(training: bool) -> None:
    network = shaken(Ple(SCHEMA, SIZES, specific=0)).train(training)
    batch, naive = drawn(SCHEMA, 7), Naive(network, training)
    x = naive.embed(batch)
    experts = [naive.mlp(f"levels.0.shared.{e}", x) for e in range(4)]
    streams = []
    for task in range(2):
        gates = [softmax(naive.linear(f"levels.0.gates.{task}", row)) for row in x]
        streams.append([weighted(gate, [e[b] for e in experts]) for b, gate in enumerate(gates)])
    expected = naive.towers(streams)
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-10


@pytest.mark.parametrize("levels", [1, 2])
def test_gates_sum_to_one(levels: int) -> None:
    """Experts that all give the same are mixed to the same."""
    network = shaken(Ple(SCHEMA, SIZES, levels=levels)).eval()
    last: Any = network.levels[-1]
    for expert in (expert for experts in (*last.own, last.shared) for expert in experts):
        nn.init.zeros_(expert[5].weight)  # of the last normalisation, before ReLU and dropout
        nn.init.constant_(expert[5].bias, 2)
    batch = drawn(SCHEMA, 7)
    same = torch.full((7, 4), 2.0, dtype=torch.float64)
    expected = torch.cat([tower(same) for tower in network.towers], dim=1)
    assert torch.allclose(network.logits(batch), expected, atol=1e-12)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_task_reaches_another_ones_experts_by_the_shared_stream_only(levels: int) -> None:
    network = shaken(Ple(SCHEMA, SIZES, levels=levels)).eval()
    network.logits(drawn(SCHEMA, 30))[:, 0].sum().backward()
    level: Any
    for number, level in enumerate(network.levels):
        for task, reached in ((0, True), (1, number < levels - 1)):
            assert any(moved(value) for value in level.own[task].parameters()) == reached
            assert moved(level.gates[task].weight) == (task == 0)
        assert any(moved(value) for value in level.shared.parameters())
    assert network.levels[-1].shared_gate is None


@pytest.mark.parametrize(
    ("n_tasks", "experts", "own", "shared"),
    [
        (2, 4, 1, 2),
        (2, 8, 2, 4),
        (2, 3, 1, 1),
        (2, 6, 1, 4),
        (3, 4, 1, 1),
        (3, 12, 2, 6),
        (1, 6, 3, 3),
    ],
)
def test_how_experts_are_shared_out(n_tasks: int, experts: int, own: int, shared: int) -> None:
    schema = Schema(tuple("abc"[:n_tasks]), ("NL",), (5,), 0)
    level: Any = Ple(schema, ModelSettings(experts=experts)).levels[0]
    assert [len(mine) for mine in level.own] == [own] * n_tasks
    assert len(level.shared) == shared
    assert own * n_tasks + shared == experts


def test_too_few_experts_are_refused() -> None:
    with pytest.raises(UserError, match=r"'model\.experts' must be 3 or more"):
        Ple(SCHEMA, ModelSettings(experts=2))
    with pytest.raises(UserError, match="must be 5 or more"):
        Ple(SCHEMA, ModelSettings(experts=4), specific=2)
