"""PEPNet against loops over samples; its gates."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.msmt.naive_network import SCHEMA, SIZES, Naive, Row, drawn, shaken, sigmoid
from torch import nn

from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch
from coterie.msmt.models.pepnet import GateNU, PepNet
from coterie.msmt.settings import ModelSettings

KEY = Key.from_seed(3)
THREE = Schema(("click", "cart", "buy"), ("NL", "ES"), (5, 4), 2, funnel=True)


def naive_gate(naive: Naive, name: str, row: Row) -> Row:
    hidden = [max(x, 0.0) for x in naive.linear(f"{name}.hidden", row)]
    return [2 * sigmoid(x) for x in naive.linear(f"{name}.out", hidden)]


def product(a: Row, b: Row) -> Row:
    return [x * y for x, y in zip(a, b, strict=True)]


def naive_pepnet(network: PepNet, batch: Batch, training: bool) -> np.ndarray:
    naive, n_tasks = Naive(network, training), network.schema.n_tasks
    scenario = [naive.state["scenario.weight"][p].tolist() for p in batch["scenario"].tolist()]
    personal = [
        product(naive_gate(naive, "embedding_gate", s + e), e)
        for s, e in zip(scenario, naive.embed(batch), strict=True)
    ]
    seen = [s + o for s, o in zip(scenario, personal, strict=True)]
    streams = [personal] * n_tasks
    for number in range(len(network.layers)):
        gates = [naive_gate(naive, f"layers.{number}.gate", row) for row in seen]
        width = len(streams[0][0])
        assert len(gates[0]) == n_tasks * width
        found = []
        for task, stream in enumerate(streams):
            mine = [gate[task * width : (task + 1) * width] for gate in gates]
            rows = [product(a, b) for a, b in zip(mine, stream, strict=True)]
            name = f"layers.{number}.tasks.{task}"
            if number < len(network.layers) - 1:
                found.append(naive.mlp(name, rows))
            else:
                found.append([naive.linear(name, row) for row in rows])
        streams = found
    return np.array(streams)[:, :, 0].T


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("schema", [SCHEMA, THREE])
@pytest.mark.parametrize("norm", [True, False])
def test_pepnet(schema: Schema, norm: bool, training: bool) -> None:
    settings = ModelSettings(
        embedding=3, expert_layers=(5, 4), tower_layers=(3, 2), dropout=0, mlp_norm=norm
    )
    network, batch = shaken(PepNet(schema, settings)).train(training), drawn(schema, 7)
    expected = naive_pepnet(network, batch, training)
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-9


def test_gates_of_one_leave_a_perceptron_for_each_task() -> None:
    network, batch = shaken(PepNet(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 7)
    for part in network.modules():
        if isinstance(part, GateNU):
            nn.init.zeros_(part.out.weight)
            nn.init.zeros_(part.out.bias)
    naive = Naive(network)
    streams = [naive.embed(batch)] * 2
    for number in range(4):
        streams = [naive.mlp(f"layers.{number}.tasks.{t}", rows) for t, rows in enumerate(streams)]
    expected = [
        [naive.linear(f"layers.4.tasks.{t}", row)[0] for row in rows]
        for t, rows in enumerate(streams)
    ]
    found = network.logits(batch).detach().numpy()
    assert np.abs(found - np.array(expected).T).max() < 1e-10


@given(st.integers(0, 10_000), st.floats(0.01, 30))
def test_gates_are_between_0_and_2(seed: int, size: float) -> None:
    with Key.from_seed(seed).torch_rng():
        gate = GateNU(3, 4, 2).double()
    x = size * Key.from_seed(seed).normal(5, 3, dtype=torch.float64)
    found = gate(x)
    assert 0 < found.min() <= found.max() < 2


def test_no_gradient_goes_through_what_gates_see() -> None:
    """The embeddings' gradient is the one with gates that are held as they are."""
    network, batch = shaken(PepNet(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 7)
    held: list[torch.Tensor] = []

    def keep(part: nn.Module, args: object, out: torch.Tensor) -> None:
        held.append(out.detach())

    gates = [part for part in network.modules() if isinstance(part, GateNU)]
    hooks = [gate.register_forward_hook(keep) for gate in gates]
    network.loss(batch).backward()
    found = [value.grad for value in network.inputs.parameters()]
    for hook in hooks:
        hook.remove()
    network.zero_grad()
    values = iter(held)
    for gate in gates:
        gate.register_forward_hook(lambda part, args, out: next(values))
    network.loss(batch).backward()
    assert len(held) == 1 + len(network.layers)
    for value, before in zip(network.inputs.parameters(), found, strict=True):
        assert before is not None
        assert value.grad is not None
        assert torch.allclose(value.grad, before, atol=1e-14)


def test_every_gate_sees_the_scenario() -> None:
    network, batch = shaken(PepNet(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 30)
    seen = []
    for part in network.modules():
        if isinstance(part, GateNU):
            part.register_forward_hook(lambda part, args, out: seen.append(out))
    network.logits(batch | {"scenario": torch.zeros(30, dtype=torch.int64)})
    before, seen[:] = list(seen), []
    network.logits(batch | {"scenario": torch.ones(30, dtype=torch.int64)})
    assert len(before) == len(seen) == 6
    assert all(not torch.allclose(a, b) for a, b in zip(before, seen, strict=True))


def test_units_of_gates() -> None:
    network = PepNet(SCHEMA, SIZES)
    assert network.embedding_gate.hidden.weight.shape == (9, 12)
    sizes = [part.hidden.out_features for part in network.modules() if isinstance(part, GateNU)]
    assert sizes == [9, 9, 5, 4, 3, 2]
    network = PepNet(SCHEMA, SIZES, gate_units=7)
    assert {g.hidden.out_features for g in network.modules() if isinstance(g, GateNU)} == {7}
