"""What all networks have in common."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.msmt.naive_network import SCHEMA, SIZES, drawn, moved, shaken
from torch import nn
from torch.func import functional_call

from coterie.core.local_training.alone import statistics_of
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.aesm2 import Aesm2
from coterie.msmt.models.base import Batch, MultiTask, auc
from coterie.msmt.models.funnel import Aitm, Esmm
from coterie.msmt.models.make import SingleTask
from coterie.msmt.models.pepnet import PepNet
from coterie.msmt.models.ple import Ple
from coterie.msmt.models.star import Star
from coterie.msmt.settings import ModelSettings

NETWORKS = {
    "single-task": SingleTask,
    "ple": Ple,
    "ple-2": lambda schema, sizes: Ple(schema, sizes, levels=2),
    "esmm": Esmm,
    "aitm": Aitm,
    "star": Star,
    "aesm2": Aesm2,
    "pepnet": PepNet,
}
KEY = Key.from_seed(4)
Make = Callable[[Schema, ModelSettings], MultiTask]
each_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


class Loss(nn.Module):
    """A network's loss as a module's forward pass."""

    def __init__(self, network: MultiTask) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.network.loss(batch)


@each_network
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_loss_is_finite_and_probabilities_are_such(make: Make, dropout: float) -> None:
    with KEY.fold("start").torch_rng():
        network = make(SCHEMA, ModelSettings(embedding=3, dropout=dropout))
        batch = drawn(SCHEMA, 30)
        loss = network.loss(batch)
        predictions = network.eval().predictions(batch)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert 0 < loss < 10
    assert all(value.shape == (30, 2) for value in predictions.values())
    probabilities = network.probabilities(batch)
    assert 0 < probabilities.min() <= probabilities.max() < 1
    assert set(network.measures(predictions)) == set(network.measure_names)


@each_network
def test_every_parameter_gets_a_gradient(make: Make) -> None:
    network = shaken(make(SCHEMA, SIZES)).eval()
    network.loss(drawn(SCHEMA, 200)).backward()
    assert [name for name, value in network.named_parameters() if not moved(value)] == []


@each_network
def test_it_is_a_function_of_named_values(make: Make) -> None:
    """Training moves the statistics that are handed in, and none of the module's own."""
    network, batch = shaken(make(SCHEMA, SIZES)), drawn(SCHEMA, 30)
    module = Loss(network)
    own = {name: value.clone() for name, value in module.state_dict().items()}
    other = shaken(make(SCHEMA, SIZES), seed=1)
    given = {name: value.clone() for name, value in Loss(other).state_dict().items()}
    taken = {
        name: value.clone().requires_grad_(name in dict(module.named_parameters()))
        for name, value in given.items()
    }
    with KEY.fold("noise").torch_rng():
        loss = functional_call(module, taken, (batch,))
    loss.backward()
    with KEY.fold("noise").torch_rng():
        expected = other.loss(batch)
    expected.backward()
    assert loss.item() == expected.item()
    assert all(torch.equal(value, own[name]) for name, value in module.state_dict().items())
    assert all(value.grad is None for value in module.parameters())
    assert set(statistics_of(module)) == {name for name, _ in module.named_buffers()}
    for name, value in Loss(other).named_buffers():
        assert torch.equal(taken[name], value)
        assert not torch.equal(taken[name], given[name])
    for name, value in Loss(other).named_parameters():
        grad = taken[name].grad
        assert grad is not None
        assert value.grad is not None
        assert torch.equal(grad, value.grad)


@each_network
def test_evaluation_moves_no_statistics(make: Make) -> None:
    network = shaken(make(SCHEMA, SIZES)).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.loss(drawn(SCHEMA, 30))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@each_network
@settings(max_examples=6)
@given(st.permutations(range(8)))
def test_samples_come_out_in_their_order(make: Make, order: list[int]) -> None:
    network, batch, logits = steady(make)
    permuted = network.logits({name: value[order] for name, value in batch.items()})
    assert torch.allclose(permuted, logits[order], rtol=1e-12, atol=1e-11)


@cache
def steady(make: Make) -> tuple[MultiTask, Batch, torch.Tensor]:
    """A network for evaluation, samples and their logits."""
    network, batch = shaken(make(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 8)
    return network, batch, network.logits(batch).detach()


@each_network
def test_a_sample_alone_is_as_among_others(make: Make) -> None:
    network, batch = shaken(make(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 6)
    alone = [
        network.logits({name: value[row : row + 1] for name, value in batch.items()})
        for row in range(6)
    ]
    assert torch.allclose(torch.cat(alone), network.logits(batch), rtol=1e-12, atol=1e-11)
    assert network.logits({name: value[:0] for name, value in batch.items()}).shape == (0, 2)


@each_network
def test_a_few_samples_are_learnt_by_heart(make: Make) -> None:
    with KEY.fold("start").torch_rng():
        network, batch = make(SCHEMA, ModelSettings(dropout=0)), drawn(SCHEMA, 24)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
        before = network.loss(batch).item()
        for _ in range(30):
            optimizer.zero_grad()
            loss = network.loss(batch)
            loss.backward()
            optimizer.step()
    assert loss.item() < 0.3 * before


ONE_SCENARIO = Schema(("click", "buy"), ("NL",), (5, 4), 2, funnel=True)


@each_network
@pytest.mark.parametrize(
    ("schema", "norm"),
    [
        (ONE_SCENARIO, True),
        (ONE_SCENARIO, False),
        (Schema(("click", "cart", "buy"), ("NL", "ES"), (), 3, funnel=True), True),
        (Schema(("click",), ("NL", "ES"), (6,), 0, funnel=True), True),
    ],
    ids=["one-scenario", "no-normalisation", "numbers-only", "one-task-no-numbers"],
)
def test_other_forms_of_samples(make: Make, schema: Schema, norm: bool) -> None:
    network = make(schema, ModelSettings(embedding=3, mlp_norm=norm, expert_layers=(4,)))
    batch = drawn(schema, 12)
    network.loss(batch).backward()
    assert network.eval().logits(batch).shape == (12, schema.n_tasks)


@each_network
def test_one_scenarios_samples_keep_their_number(make: Make) -> None:
    """A client trains on samples of its own scenario, which may be any of the S."""
    network, batch = shaken(make(SCHEMA, SIZES)), drawn(SCHEMA, 12)
    loss = network.loss(batch | {"scenario": torch.full((12,), 2)})
    loss.backward()
    assert loss.isfinite()


@each_network
def test_the_start_is_the_keys(make: Make) -> None:
    states = []
    for seed in (0, 0, 1):
        with KEY.fold("start", seed).torch_rng():
            states.append(make(SCHEMA, SIZES).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert any(not torch.equal(value, states[2][name]) for name, value in states[0].items())


def test_scores_that_are_no_numbers_have_no_auc() -> None:
    """Ranked as they come, they would have one of the order of the rows."""
    labels = torch.tensor([0, 0, 1, 1])
    assert auc(torch.tensor([0.1, float("-inf"), 0.2, float("inf")]), labels) == 1.0
    for scores in ([torch.nan] * 4, [0.1, 0.2, 0.3, torch.nan]):
        assert auc(torch.tensor(scores), labels).isnan()
