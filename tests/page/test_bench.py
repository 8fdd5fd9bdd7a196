"""The benchmark of PAGE: its loop trains as the engine does, and its rows are complete."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.core.machine import Limits
from benchmarks.core.modules.loops import ClientLoop
from benchmarks.page import measure
from benchmarks.page.rounds import FedAvgRounds, local_steps
from coterie.core.settings.sections import EngineSettings
from coterie.page.settings import Settings, TaskSettings, TrainSettings

SMALL = Settings(
    data=TaskSettings(clients=4), train=TrainSettings(epochs=2, batch_size=64, clip=1.0)
)
DOUBLE = replace(SMALL, engine=EngineSettings(dtype="float64"))


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def complete(rows):
    assert rows
    for row in rows:
        assert set(row) == {"name", "unit", "ours", "reference", "ratio", "max_abs_diff"}
        assert 0 < row["ours"] < math.inf
        assert row["ratio"] == pytest.approx(row["reference"] / row["ours"])
    return rows


@pytest.mark.parametrize("closed_form", [True, False])
@pytest.mark.parametrize("skew", [0.0, 1.0])  # with it, clients have unequal numbers of samples
def test_the_loop_trains_as_the_engine_does(closed_form, skew):
    settings = replace(DOUBLE, data=replace(DOUBLE.data, quantity_skew=skew))
    assert FedAvgRounds(settings, closed_form).largest_difference(3) < 1e-12


def test_a_difference_is_noticed(monkeypatch):
    rounds = FedAvgRounds(DOUBLE)
    monkeypatch.setattr("benchmarks.core.modules.loops.clip_grad_norm_", lambda *a, **k: None)
    assert rounds.largest_difference(3) > 1e-6


def test_the_loops_own_batches_visit_every_sample_in_every_epoch():
    rounds = FedAvgRounds(SMALL)
    loop: ClientLoop = rounds.loop(2)
    x = torch.cat([batch["x"] for batch in loop._draw(1)])
    own = loop.clients[1]["x"]
    assert len(x) == 2 * len(own)
    assert not torch.equal(x[: len(own)], own)
    for epoch in x.split(len(own)):
        assert torch.equal(epoch.sort(0).values, own.sort(0).values)


def test_steps_are_counted():
    rounds = FedAvgRounds(SMALL)
    assert local_steps(rounds) == 4 * 2 * math.ceil(210 / 64)


def test_rows_of_fedavg():
    rows = complete(list(measure.fedavg(SMALL, turns=1)))
    assert len(rows) == 6
    assert max(row["max_abs_diff"] for row in rows[:2]) < 1e-5
    assert "4 clients, 32 steps" in rows[0]["name"]


def test_a_network_without_a_closed_form_is_not_said_to_have_one(monkeypatch):
    monkeypatch.delattr("coterie.core.models.classifier.SoftmaxRegression.slope")
    rows = complete(list(measure.fedavg(SMALL, turns=1)))
    assert [("torch.func" in row["name"]) for row in rows] == [True, False]


def test_rows_of_the_agents():
    rows = complete(list(measure.agents(SMALL)))
    by_name = {row["name"]: row["ours"] for row in rows}
    for follower, parts in (("best-response", "best response"), ("ddpg", "server agent")):
        own = {name.split(": ")[1]: s for name, s in by_name.items() if f" {follower}:" in name}
        assert own["all agents"] == pytest.approx(own["client agents"] + own[parts])
        assert own["all agents"] < 100


def test_rows_of_the_methods():
    rows = complete(list(measure.methods(SMALL, turns=1)))
    names = {row["name"].split(",")[0] for row in rows}
    assert {"page", "scaffold", "ditto", "fedprox"} <= names
    assert not {"fedavg", "central"} & names


@pytest.mark.long
def test_rows_of_memory():
    (row,) = complete(list(measure.memory(SMALL, clients=20, methods=["fedavg"])))
    data = 20 * 210 * (30 * 4 + 8) / 1e6  # training samples alone
    assert data < row["reference"] < 4 * data


def test_the_hardware_is_measured():
    limits = Limits.measured()
    assert 1e8 < limits.flops < 1e14
    assert 1e7 < limits.bandwidth < 1e13
