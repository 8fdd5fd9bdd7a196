"""AESM² against loops over samples, gates and experts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as divergence
from tests.msmt.naive_network import (
    SCHEMA,
    SIZES,
    Naive,
    Row,
    drawn,
    entropy,
    shaken,
    softmax,
    weighted,
)

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.aesm2 import Aesm2, Selection, divergences
from coterie.msmt.models.base import Batch, cross_entropy
from coterie.msmt.settings import ModelSettings

KEY = Key.from_seed(2)


class NaiveAesm2(Naive):
    """Selections, a sample at a time."""

    def weights(
        self, name: str, seen: list[Row], own: list[int], selection: Selection
    ) -> tuple[list[Row], float]:
        """Weights of the experts, and the loss on the selection."""
        m, n = selection.n_gates, selection.n_experts
        rows = self.norm(f"{name}.gates.1", [self.linear(f"{name}.gates.0", row) for row in seen])
        found, from_own, from_uniform = [], [], []
        for row, j in zip(rows, own, strict=True):
            gates = [row[gate * n : gate * n + n] for gate in range(m)]
            p = [softmax([gate[e] for gate in gates]) for e in range(n)]
            special = [-math.log(p[e][j]) for e in range(n)]
            uniform = [sum(math.log(1 / m / q) / m for q in p[e]) for e in range(n)]
            first = sorted(range(n), key=lambda e: special[e])[: selection.specific]
            second = sorted(range(n), key=lambda e: uniform[e])[: selection.shared]
            union = {*first, *second} if m > 1 else set(range(n))
            total = sum(math.exp(gates[j][e]) for e in union)
            found.append([math.exp(gates[j][e]) / total if e in union else 0.0 for e in range(n)])
            from_own += [special[e] for e in first]
            from_uniform += [uniform[e] for e in second]
        loss = sum(sum(kind) / len(kind) for kind in (from_own, from_uniform) if kind)
        return found, loss if m > 1 else 0.0


def naive_aesm2(network: Aesm2, batch: Batch, training: bool) -> tuple[np.ndarray, float]:
    naive, n_tasks = NaiveAesm2(network, training), network.schema.n_tasks
    x, own = naive.embed(batch), batch["scenario"].tolist()
    scenario = [naive.state["scenario.weight"][p].tolist() for p in own]
    seen = [a + b for a, b in zip(x, scenario, strict=True)]
    weights, loss = naive.weights("by_scenario", seen, own, network.by_scenario)
    experts = [naive.mlp(f"scenario_experts.{e}", x) for e in range(len(weights[0]))]
    z = [weighted(w, [one[b] for one in experts]) for b, w in enumerate(weights)]
    tasks = naive.state["task"].tolist()
    seen = [a + b + task for task in tasks for a, b in zip(z, scenario, strict=True)]
    numbers = [task for task in range(n_tasks) for _ in z]
    weights, more = naive.weights("by_task", seen, numbers, network.by_task)
    experts = [naive.mlp(f"task_experts.{e}", z) for e in range(len(weights[0]))]
    streams = []
    for task in range(n_tasks):
        mine = weights[task * len(z) : (task + 1) * len(z)]
        streams.append([weighted(w, [one[b] for one in experts]) for b, w in enumerate(mine)])
    return naive.towers(streams), loss + more


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("specific", "shared"), [(1, 2), (2, 1), (0, 3), (1, 0), (4, 4)])
def test_aesm2(specific: int, shared: int, training: bool) -> None:
    network = shaken(Aesm2(SCHEMA, SIZES, specific, shared, noise=0, selection=0.3))
    network.train(training)
    batch = drawn(SCHEMA, 11)
    expected, more = naive_aesm2(network, batch, training)
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-9
    loss = entropy(expected, batch["labels"].numpy()) + 0.3 * more
    assert more > 0
    assert network.loss(batch).item() == pytest.approx(loss, rel=1e-10)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(("click",), ("NL", "ES"), (5, 4), 2),
        Schema(("click", "buy"), ("NL",), (5, 4), 2),
        Schema(("click",), ("NL",), (5, 4), 2),
    ],
)
def test_one_task_or_scenario_selects_every_expert(schema: Schema) -> None:
    network, batch = shaken(Aesm2(schema, SIZES)).eval(), drawn(schema, 6)
    expected, more = naive_aesm2(network, batch, False)
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-9
    loss = entropy(expected, batch["labels"].numpy()) + 0.01 * more
    assert network.loss(batch).item() == pytest.approx(loss, rel=1e-10)


gates = st.integers(0, 10_000).map(
    lambda seed: 3 * Key.from_seed(seed).normal(4, 3, 5, dtype=torch.float64)
)


@settings(max_examples=20)
@given(gates)
def test_divergences_are_scipys(logits: torch.Tensor) -> None:
    own = torch.tensor([0, 1, 2, 1])
    from_own, from_uniform = divergences(logits, own)
    for b in range(4):
        for e in range(5):
            p = logits[b, :, e].softmax(0).numpy()
            one_hot = np.eye(3)[own[b]]
            assert from_own[b, e].item() == pytest.approx(divergence(one_hot, p), abs=1e-12)
            uniform = divergence(np.full(3, 1 / 3), p)
            assert from_uniform[b, e].item() == pytest.approx(uniform, abs=1e-12)


def test_only_uniform_gates_are_uniform() -> None:
    logits = torch.zeros(1, 3, 2, dtype=torch.float64)
    logits[0, 0, 1] = 1e-2
    _, from_uniform = divergences(logits, torch.tensor([0]))
    assert from_uniform[0, 0].abs() < 1e-15
    assert from_uniform[0, 1] > 1e-6


@given(gates, st.integers(0, 5), st.integers(0, 5))
def test_selected_are_the_nearest(logits: torch.Tensor, specific: int, shared: int) -> None:
    if not specific + shared:
        return
    own = torch.tensor([2, 0, 1, 0])
    selected, _ = Selection(1, 3, 5, specific, shared).select(logits, own)
    from_own, from_uniform = divergences(logits, own)
    for b in range(4):
        union = {*from_own[b].argsort()[:specific].tolist()}
        union |= {*from_uniform[b].argsort()[:shared].tolist()}
        assert {*selected[b].nonzero()[:, 0].tolist()} == union


@pytest.mark.parametrize("training", [False, True])
def test_weights_of_others_are_exactly_nothing(training: bool) -> None:
    """Also where all logits are far below zero, which a product with -1e9 would turn around."""
    selection = shaken(Selection(4, 3, 6, 1, 2)).train(training)
    dict(selection.named_parameters())["gates.1.bias"].data.fill_(-50)
    seen, own = KEY.fold("seen").normal(30, 4, dtype=torch.float64), torch.arange(30) % 3
    with KEY.fold("noise").torch_rng():
        weights, _ = selection(seen, own)
    counts = (weights > 0).sum(1)
    assert ((weights == 0).sum(1) == 6 - counts).all()
    assert 2 <= counts.min() <= counts.max() == 3
    assert torch.allclose(weights.sum(1), torch.ones(30, dtype=torch.float64))


def test_all_selected_are_the_gate_of_mmoe() -> None:
    """And noise, which is for the selection alone, then changes nothing."""
    selection = shaken(Selection(4, 3, 6, 6, 0, noise=5.0)).train()
    seen, own = KEY.fold("seen").normal(30, 4, dtype=torch.float64), torch.arange(30) % 3
    weights, _ = selection(seen, own)
    logits = selection.gates(seen).view(30, 3, 6)
    for b in range(30):
        assert torch.allclose(weights[b], logits[b, own[b]].softmax(0), atol=1e-14)


def test_noise_is_the_generators_and_for_training_alone() -> None:
    network, batch = shaken(Aesm2(SCHEMA, SIZES, noise=2.0)), drawn(SCHEMA, 60)

    def found(seed: int) -> torch.Tensor:
        with KEY.fold("noise", seed).torch_rng():
            return network.logits(batch)

    assert torch.equal(found(0), found(0))
    assert not torch.equal(found(0), found(1))
    network.eval()
    assert torch.equal(found(0), found(1))


def test_noise_is_scaled_by_the_number_of_experts() -> None:
    """The same draws with twice the experts' share of noise select the same."""
    one, two = (shaken(Selection(4, 3, 6, 1, 2, noise=noise)) for noise in (0.5, 0.0))
    seen, own = KEY.fold("seen").normal(30, 4, dtype=torch.float64), torch.arange(30) % 3
    with KEY.fold("noise").torch_rng():
        weights, loss = one(seen, own)
    with KEY.fold("noise").torch_rng():
        logits = two.gates(seen).view(30, 3, 6)
        noisy = logits + 3.0 * torch.randn(30, 3, 6, dtype=torch.float64)
    selected, expected = two.select(noisy, own)
    assert torch.equal(weights > 0, selected)
    assert loss.item() == pytest.approx(expected.item())


def test_task_embedding_counts_in_training() -> None:
    """One task's samples as a batch of their own would be normalised to no task at all."""
    network, batch = shaken(Aesm2(SCHEMA, SIZES, 4, 4)).train(), drawn(SCHEMA, 20)
    network.loss(batch).backward()
    assert network.task.grad is not None
    assert network.task.grad.abs().max() > 1e-6


def test_weight_of_the_losses_on_the_selection() -> None:
    network, batch = shaken(Aesm2(SCHEMA, SIZES, selection=0)).eval(), drawn(SCHEMA, 9)
    expected = cross_entropy(network.logits(batch), batch["labels"].double())
    assert network.loss(batch).item() == expected.item()


def test_numbers_of_selected_experts() -> None:
    layer = Aesm2(SCHEMA, ModelSettings(experts=8)).by_task
    assert (layer.specific, layer.shared) == (2, 4)
    layer = Aesm2(SCHEMA, ModelSettings(experts=1)).by_task
    assert (layer.specific, layer.shared) == (1, 1)
    for specific, shared in ((5, 1), (1, 5), (0, 0)):
        with pytest.raises(UserError, match="select at least one, and of each kind at most 4"):
            Aesm2(SCHEMA, SIZES, specific, shared)
