"""What Lightning's Trainer adds to a round: a row of the benchmarks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.core.timing import CPU_MS, Row, in_turns, row
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.federation import Federation
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key
from coterie.core.training.loggers.rounds import MetricsLogger
from coterie.core.training.trainer import fit


def trainer_overhead(rounds: int = 200, turns: int = 5) -> Row:
    """Compare rounds under the Trainer, with its callbacks and ``metrics.csv``, with bare rounds.

    The rounds are those of FedAvg on two clients, so small that little else is in them; two lengths
    of a run are compared, so that making the Trainer does not count.

    Args:
        rounds: by which the two lengths differ.
        turns: of each.

    Returns:
        ``ours``, the median of what is added to a round; ``reference``, the 5 ms that it may be.
    """
    with tempfile.TemporaryDirectory() as folder:

        def driven(count: int) -> None:
            fit(_run(count), loggers=[MetricsLogger(Path(folder))])

        def bare(count: int) -> None:
            run = _run(count)
            while not run.finished:
                run.advance()

        works = {
            f"{name} {count}": (lambda made=made, count=count: made(count))
            for name, made in (("driven", driven), ("bare", bare))
            for count in (20, 20 + rounds)
        }
        found = {
            name: sorted(times)[len(times) // 2] for name, times in in_turns(works, turns).items()
        }
    added = [found[f"{name} {20 + rounds}"] - found[f"{name} 20"] for name in ("driven", "bare")]
    return row("what the Trainer adds to a round", CPU_MS, (added[0] - added[1]) / rounds, 5.0)


class _Line(nn.Module):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Mean squared error of x w = 1."""
        return (batch["x"] * self.weight - 1).square().mean()


def _run(rounds: int) -> FederatedRun:
    samples = {"x": Key.from_seed(0).normal(8)}
    data = SampleData(torch.arange(2), samples, torch.tensor([0, 4, 8]))
    settings = FedAvgSettings(rounds=rounds, epochs=1, batch_size=4, lr=0.1)
    halves = FedAvgServer(_Line, settings), FedAvgClient(_Line(), settings)
    return FederatedRun(Federation(*halves, blocks=[SplitSamples.of(data)], rounds=rounds))
