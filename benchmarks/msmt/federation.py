"""A round of scenarios beside a plain loop over networks, and the server's part of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.core.timing import CPU_MS, Row, in_turns, row
from benchmarks.msmt.steps import ALIEXPRESS, draw
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.federation import Federation
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key
from coterie.msmt.aggregation.coordination import coordinate, gram_of
from coterie.msmt.models.base import MultiTask
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.settings import ModelSettings

SMALL = ModelSettings(name="mmoe", embedding=8, expert_layers=(64, 32), tower_layers=(32, 16))
_KEY = Key.from_seed(0)
_SCENARIOS, _STEPS, _BATCH = 4, 15, 256
_DECAY = 1e-6
_EXPERTS, _NUMBERS = 4, 1_114_112  # of a scenario parameter at the paper's sizes


def rounds(sizes: ModelSettings = SMALL, turns: int = 15) -> Iterator[Row]:
    """Compare a round of FedAvg over 4 scenarios with a plain loop over networks.

    Both make the same steps on the same batches, with Adam whose state is kept, without dropout;
    the difference is the largest in a parameter after a round in float64.

    Args:
        sizes: of the network.
        turns: of each way; the fastest counts.
    """
    sizes = replace(sizes, dropout=0.0)
    data = samples()
    ours = _Federated(sizes, data)
    loop = _Loop(sizes, data, ours)
    times = in_turns({"ours": ours.round, "loop": loop.round}, turns)
    found = {name: min(each) for name, each in times.items()}
    apart = largest_difference(sizes, data)
    name = f"FedAvg, {_SCENARIOS} scenarios, {_SCENARIOS * _STEPS} steps of {_BATCH}; plain loop"
    yield row(name, CPU_MS, found["ours"], found["loop"], apart)


def largest_difference(sizes: ModelSettings, data: SampleData) -> float:
    """Play a round both ways in float64, and compare the averaged models."""
    ours = _Federated(sizes, data, torch.float64)
    loop = _Loop(sizes, data, ours, torch.float64)
    for one in (ours, loop):
        one.round()
    return max(float((ours.weights[n] - w).abs().max()) for n, w in loop.weights.items())


def coordination(turns: int = 20) -> Iterator[Row]:
    """Measure the dual of 16 increments of the paper's size, and their inner products."""
    increments = _KEY.fold("increments").normal(_SCENARIOS * _EXPERTS, _NUMBERS)
    gram = gram_of([increments])
    works = {"dual": lambda: coordinate(gram, 0.4), "gram": lambda: gram_of([increments])}
    found = {name: min(times) for name, times in in_turns(works, turns).items()}
    gap = float(coordinate(gram, 0.4).gap.max())
    what = f"{len(gram)} increments"
    yield row(
        f"coordination of {what}; what it may take (its gap)", CPU_MS, found["dual"], 2.0, gap
    )
    yield row(f"  inner products of {what} of {_NUMBERS:,} numbers", CPU_MS, found["gram"])


def samples() -> SampleData:
    """Draw the samples of the scenarios."""
    of_all = draw(ALIEXPRESS, _SCENARIOS * _STEPS * _BATCH, _KEY.fold("samples"))
    parts = zip(*(value.chunk(_SCENARIOS) for value in of_all.values()), strict=True)
    return SampleData.from_clients([dict(zip(of_all, part, strict=True)) for part in parts])


def _network(sizes: ModelSettings, dtype: torch.dtype) -> MultiTask:
    return MMoE(ALIEXPRESS, sizes).to(dtype)


class _Federated:
    """FedAvg by the core."""

    def __init__(
        self, sizes: ModelSettings, data: SampleData, dtype: torch.dtype = torch.float32
    ) -> None:
        settings = FedAvgSettings(
            rounds=1_000,
            batch_size=_BATCH,
            lr=1e-3,
            optimizer="adam",
            weight_decay=_DECAY,
            evaluate_every=0,
        )
        client = FedAvgClient(_network(sizes, dtype), settings)
        server = FedAvgServer(lambda: _network(sizes, dtype), settings)
        self.run = FederatedRun(Federation(server, client, blocks=[SplitSamples.of(data)]))

    def round(self) -> None:
        self.run.advance()

    @property
    def weights(self) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = self.run.server_state.weights
        return weights


class _Loop:
    """The same by torch alone: a network and an optimizer a scenario."""

    def __init__(
        self,
        sizes: ModelSettings,
        data: SampleData,
        ours: _Federated,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.networks = [_network(sizes, dtype) for _ in range(_SCENARIOS)]
        for network in self.networks:
            network.load_state_dict(ours.weights, strict=False)
            for parameter in network.parameters():  # none where nothing flows, which Adam skips
                parameter.grad = torch.zeros_like(parameter)
        self.adams = [
            torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=_DECAY, fused=True)
            for network in self.networks
        ]
        self.data = [data.take(torch.tensor([j])) for j in range(_SCENARIOS)]
        self.secret, self.rounds = ours.run.secret, 0

    def round(self) -> None:
        self.rounds += 1
        for network, adam, data in zip(self.networks, self.adams, self.data, strict=True):
            key = self.secret.fold(data.ids).fold("update", 0, self.rounds, 0)
            batches = data.batches(1, _BATCH, key)
            for number in range(_STEPS):
                found = batches(number, torch.tensor([0]))
                adam.zero_grad(set_to_none=False)
                network.loss({name: value[0] for name, value in found.items()}).backward()
                adam.step()
        with torch.no_grad():
            for each in zip(*(network.parameters() for network in self.networks), strict=True):
                mean = torch.stack(each).mean(0)
                for parameter in each:
                    parameter.copy_(mean)

    @property
    def weights(self) -> dict[str, Tensor]:
        return {n: w.detach() for n, w in self.networks[0].named_parameters()}
