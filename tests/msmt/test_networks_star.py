"""STAR and its partitioned normalisation against loops, and against separate normalisations."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.msmt.naive_network import SCHEMA, SIZES, Naive, Row, drawn, moments, moved, shaken
from torch import nn

from coterie.core.tensors.keys import Key
from coterie.msmt.models.base import Batch
from coterie.msmt.models.star import PartitionedNorm, Star, StarLinear
from coterie.msmt.settings import ModelSettings

KEY = Key.from_seed(1)


class NaiveStar(Naive):
    """Star layers, a sample at a time."""

    scenario: list[int]

    def partitioned(self, name: str, rows: list[Row]) -> list[Row]:
        found = []
        for row, p in zip(rows, self.scenario, strict=True):
            mates = [x for x, other in zip(rows, self.scenario, strict=True) if other == p]
            out = []
            for unit, z in enumerate(row):
                mean = self.state[f"{name}.running_mean"][p, unit]
                var = self.state[f"{name}.running_var"][p, unit]
                if self.training and len(mates) > 1:
                    mean, var = moments([mate[unit] for mate in mates])
                scale = self.state[f"{name}.scale"][unit] * self.state[f"{name}.own_scale"][p, unit]
                shift = self.state[f"{name}.shift"][unit] + self.state[f"{name}.own_shift"][p, unit]
                out.append(scale * (z - mean) / (var + 1e-5) ** 0.5 + shift)
            found.append(out)
        return found

    def star(self, name: str, rows: list[Row]) -> list[Row]:
        found = []
        for row, p in zip(rows, self.scenario, strict=True):
            weight = self.state[f"{name}.own_weight"][p] * self.state[f"{name}.shared.weight"]
            bias = self.state[f"{name}.own_bias"][p] + self.state[f"{name}.shared.bias"]
            found.append((weight @ np.array(row) + bias).tolist())
        return found

    def star_mlp(self, name: str, rows: list[Row], n_layers: int, norm: bool) -> list[Row]:
        for number in range(n_layers):
            rows = self.star(f"{name}.layers.{number}", rows)
            if norm:
                rows = self.partitioned(f"{name}.norms.{number}", rows)
            rows = [[max(x, 0.0) for x in row] for row in rows]
        return rows


def naive_star(network: Star, batch: Batch, training: bool, norm: bool) -> np.ndarray:
    naive = NaiveStar(network, training)
    naive.scenario = batch["scenario"].tolist()
    x = naive.embed(batch)
    hidden = naive.star_mlp("expert", naive.partitioned("norm", x), 2, norm)
    found = []
    for task in range(2):
        top = naive.star_mlp(f"towers.{task}.hidden", hidden, 2, norm)
        found.append([row[0] for row in naive.star(f"towers.{task}.unit", top)])
    own = naive.state["scenario.weight"]
    seen = [[*row, *own[p]] for row, p in zip(x, naive.scenario, strict=True)]
    beside = naive.mlp("auxiliary", seen, linear_end=True)
    return np.array(found).T + np.array(beside)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("training", [False, True])
def test_star(training: bool, norm: bool) -> None:
    settings = ModelSettings(
        embedding=3, expert_layers=(5, 4), tower_layers=(3, 2), dropout=0, mlp_norm=norm
    )
    network, batch = shaken(Star(SCHEMA, settings)).train(training), drawn(SCHEMA, 9)
    batch["scenario"] = torch.tensor([2, 0, 0, 1, 0, 2, 2, 0, 0])  # one of scenario 1
    expected = naive_star(network, batch, training, norm)
    assert np.abs(network.logits(batch).detach().numpy() - expected).max() < 1e-9


def test_partitioned_statistics_are_those_of_a_normalisation_each() -> None:
    norm = PartitionedNorm(4, 3).double()
    apart = [nn.BatchNorm1d(4).double() for _ in range(3)]
    for number in range(5):
        z = KEY.fold("z", number).normal(20, 4, dtype=torch.float64) * (1 + number) + number
        scenario = torch.arange(20) % (3 if number % 2 else 2)
        found = norm(z, scenario)
        for p, one in enumerate(apart):
            if (scenario == p).any():
                assert torch.allclose(found[scenario == p], one(z[scenario == p]), atol=1e-12)
    for p, one in enumerate(apart):
        assert one.running_mean is not None
        assert one.running_var is not None
        assert torch.allclose(norm.running_mean[p], one.running_mean, atol=1e-13)
        assert torch.allclose(norm.running_var[p], one.running_var, atol=1e-13)
    assert norm.num_batches_tracked.tolist() == [5, 5, 2]
    norm.eval()
    z, scenario = KEY.fold("test").normal(6, 4, dtype=torch.float64), torch.arange(6) % 3
    found, before = norm(z, scenario), {n: v.clone() for n, v in norm.state_dict().items()}
    for p, one in enumerate(apart):
        assert torch.allclose(found[scenario == p], one.eval()(z[scenario == p]), atol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_a_scenarios_only_sample_takes_the_moving_averages_and_leaves_them() -> None:
    norm = shaken(PartitionedNorm(4, 3))
    z, scenario = KEY.fold("z").normal(5, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 0, 0])
    before = norm.running_mean.clone(), norm.running_var.clone()
    alone = norm.eval()(z[2:3], scenario[2:3])
    found = norm.train()(z, scenario)
    assert torch.equal(found[2:3], alone)
    assert found.isfinite().all()
    for now, then in zip((norm.running_mean, norm.running_var), before, strict=True):
        assert torch.equal(now[1:], then[1:])
        assert not torch.equal(now[0], then[0])
    assert norm.num_batches_tracked.tolist() == [1, 0, 0]
    found.sum().backward()
    assert all(
        value.grad is not None and value.grad.isfinite().all() for value in norm.parameters()
    )


@pytest.mark.parametrize("training", [False, True])
def test_equal_start_makes_scenarios_equal(training: bool) -> None:
    network, batch = Star(SCHEMA, SIZES).double().train(training), drawn(SCHEMA, 9)
    x = network.inputs(batch)
    found = [network.star_logits(x, torch.full((9,), p)) for p in range(3)]
    assert all(torch.allclose(found[0], other, atol=1e-12) for other in found[1:])
    nn.init.zeros_(network.scenario.weight)
    network.eval()
    whole = [network.logits(batch | {"scenario": torch.full((9,), p)}) for p in range(3)]
    assert torch.allclose(whole[0], whole[1], atol=1e-14)
    assert whole[0].std() > 0


def test_a_scenarios_batch_moves_no_other_ones_weights() -> None:
    network, batch = shaken(Star(SCHEMA, SIZES)), drawn(SCHEMA, 40)
    network.loss(batch | {"scenario": torch.ones(40, dtype=torch.int64)}).backward()
    own = {n: v for n, v in network.named_parameters() if "own_" in n or n == "scenario.weight"}
    assert len(own) > 20
    for name, value in own.items():
        assert value.grad is not None
        assert value.grad[[0, 2]].abs().max() == 0
        assert moved(value) or name.endswith(".own_bias")  # a bias before normalisation is moot


def test_a_row_alone_is_as_among_others() -> None:
    network, batch = shaken(Star(SCHEMA, SIZES)).eval(), drawn(SCHEMA, 9)
    whole = network.logits(batch)
    for row in range(9):
        alone = network.logits({name: value[row : row + 1] for name, value in batch.items()})
        assert torch.allclose(alone[0], whole[row], atol=1e-11)
    assert network.logits({name: value[:0] for name, value in batch.items()}).shape == (0, 2)


def test_star_linear_keeps_the_order_of_rows() -> None:
    layer: Any = shaken(StarLinear(3, 2, 4))
    x, scenario = (
        KEY.fold("x").normal(7, 3, dtype=torch.float64),
        torch.tensor([3, 0, 3, 1, 0, 1, 3]),
    )
    for row, p in enumerate(scenario.tolist()):
        weight = layer.own_weight[p] * layer.shared.weight
        expected = weight @ x[row] + layer.own_bias[p] + layer.shared.bias
        assert torch.allclose(layer(x, scenario)[row], expected, atol=1e-13)
