"""Rounds of any module beside a plain loop, and beside pfl where it is installed."""

import sys
from dataclasses import replace

import pytest
import torch

from benchmarks.core import pfl_rounds
from benchmarks.core.modules import rounds
from benchmarks.core.modules.cases import Case, numbers, perceptron
from benchmarks.core.modules.loops import ClientLoop
from benchmarks.core.modules.rounds import SHARED, ModuleRounds, beside_a_loop
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.chunks import fitting
from coterie.core.registry.papers import load

SMALL = Case("small", lambda: perceptron(6, 5, 3), numbers(6, classes=3), 4, 22, 5, lr=0.5)
FULL = replace(SMALL, batch_size=22)  # the order of the samples does not matter


def needs_pfl():
    pytest.importorskip("pfl", reason="pfl-research is not installed")
    from benchmarks.core.modules.loops import PflLoop

    return PflLoop


def test_without_pfl_there_is_the_row_of_the_loop_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "pfl", None)
    assert not pfl_rounds.installed()
    (row,) = beside_a_loop([SMALL], turns=1)
    assert row["name"] == "small; 4 clients, 20 steps"
    assert row["ratio"] == row["reference"] / row["ours"] > 0
    assert row["max_abs_diff"] < 1e-6


def test_pfl_has_a_row_of_its_own():
    needs_pfl()
    loop, pfl = beside_a_loop([SMALL], turns=1)
    assert pfl["name"] == loop["name"] + "; pfl"
    assert pfl["ours"] == loop["ours"]
    assert pfl["reference"] != loop["reference"]
    assert pfl["max_abs_diff"] < 1e-6


@pytest.mark.parametrize("change", [{}, {"weight_decay": 0.1}, {"clip": 0.05}])
def test_pfl_trains_as_the_loop_does(change):
    made, rounds = needs_pfl(), ModuleRounds(FULL)
    settings = replace(rounds.settings, **change)
    loop, peer = (
        one(FULL.make(), settings, rounds.split.train, seed)
        for seed, one in enumerate((ClientLoop, made))
    )
    for _ in range(2):  # pfl's first round and another, from the same model
        expected, found = loop.round(rounds.weights), peer.round(rounds.weights)
        for one, other, before in zip(found, expected, rounds.weights.values(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
            assert float((one - before).abs().max()) > 1e-3


def test_pfl_draws_another_order_in_every_round():
    made, rounds = needs_pfl(), ModuleRounds(SMALL)
    peer = rounds.loop(made)
    first, second = (peer.round(rounds.weights) for _ in range(2))
    assert any(not torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_pfl_is_measured_with_one_epoch():
    made, rounds = needs_pfl(), ModuleRounds(replace(SMALL, epochs=2))
    with pytest.raises(ValueError, match="not 2"):
        rounds.loop(made)


def test_rows_of_two_processes(monkeypatch):
    monkeypatch.setattr(rounds, "SHARED", (SMALL, SMALL))
    monkeypatch.setattr(rounds, "in_a_process", lambda name, what, *rest: load(name)(*rest))
    first, forking, second = rounds.on_two_processes()
    assert first["name"] == second["name"] == f"{SMALL.name}; two processes, one"
    assert first["max_abs_diff"] == second["max_abs_diff"] == 0
    assert forking["ours"] > 0


@pytest.mark.parametrize("case", SHARED, ids=lambda case: case.name)
def test_two_processes_share_evenly(case):
    """Else the slower one would say how fast both are."""
    few = replace(case, clients=1)
    one = ModuleRounds(few).client.footprint(SplitSamples.of(few.data()), None)
    counts = fitting(one.expand(case.clients))
    assert len(counts) > 1
    assert len(counts) % 2 == 0
    assert max(counts) - min(counts) <= 1
