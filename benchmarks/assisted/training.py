"""One organisation's local training on random data: beside plain torch, autograd, the hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.assisted.loop import UserLoop
from benchmarks.assisted.sizes import ML_100K, ML_100K_RATINGS, Drawn, Size, draw
from benchmarks.core.machine import Limits
from benchmarks.core.timing import CPU_MS, Row, in_turns, row
from coterie.assisted.aae.cells import Inputs, Pattern
from coterie.assisted.aae.network import AAE
from coterie.assisted.aae.training import Packing, Plan, Steps, Trained, batches_of, train
from coterie.assisted.objective import Squared
from coterie.core.local_training.fit import fit
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.tables.stopwatch import one_thread
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

ADAM_BYTES = 28
"""Of float32: gradient, parameter and two moments read; parameter and moments written."""
_ROUND = 20
"""Epochs of a round."""


def local_training(
    sizes: Sequence[Size] = (ML_100K_RATINGS, ML_100K), turns: int = 5, epochs: int = _ROUND
) -> Iterator[Row]:
    """Measure one organisation's local training, on random data, in turns on one thread.

    Args:
        sizes: of the data.
        turns: of each way; the fastest counts.
        epochs: that ours trains a turn; the others train for one.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``, scaled to a round of 20
        epochs. The difference is that of the mean losses of an epoch on the same draws.
    """
    with one_thread():
        for size in sizes:
            yield from Compared(size).rows(turns, epochs)


class Compared:
    """An organisation's training in three ways: ours, `fit` with autograd, and plain torch.

    Args:
        size: of the data.
        dtype: of ratings and parameters.
        hidden: width of the network's hidden layers; its code has half of it.
    """

    def __init__(self, size: Size, dtype: torch.dtype = torch.float32, hidden: int = 256) -> None:
        self.size, self.key = size, Key.from_seed(0)
        self.drawn: Drawn = draw(size, self.key.fold("data"), dtype)
        inputs, pattern, values = self.drawn.inputs, self.drawn.pattern, self.drawn.values
        columns = inputs.n_columns, pattern.n_columns
        self.network = AAE(*columns, dict(size.sides), hidden=hidden, code=hidden // 2)
        self.plan = Plan(epochs=1, batch_rows=size.batch_rows)
        self.start = self.ours(epochs=0)
        given = inputs, pattern, values, self.plan, self.key
        self.batches = batches_of(self.network, *given)

    def ours(self, epochs: int = 1) -> Trained:
        """Train from the first parameters."""
        plan = Plan(epochs=epochs, batch_rows=self.size.batch_rows)
        start = None if epochs == 0 else self.start
        data = self.drawn.inputs, self.drawn.pattern, self.drawn.values
        return train(self.network, *data, plan, self.key, start=start)

    def by_autograd(self) -> float:
        """Train for an epoch by `fit` with autograd; gives the mean loss."""
        packing, plan = Packing(self.network.shapes), self.plan
        steps = Steps(self.batches, Squared(), packing)
        fitted = fit(
            steps.loss,
            tree.as_stack(packing.pack(self.start.params)),
            steps,
            RowAdam(weight_decay=plan.weight_decay),
            plan.lr,
            self.batches.per_epoch,
            clip=plan.clip,
        )
        return float(fitted.loss)

    def loop(self) -> UserLoop:
        """Make the plain loop."""
        return UserLoop(self.network, self.drawn, self.plan, self.start.params)

    def differences(self) -> dict[str, float]:
        """How far the mean loss of an epoch on the same draws is from ours, by way."""
        ours = float(self.ours().loss)
        same = self.loop().same_epoch(self.batches)
        return {"autograd": abs(self.by_autograd() - ours), "loop": abs(same - ours)}

    def rows(self, turns: int, epochs: int) -> Iterator[Row]:
        """Measure."""
        loop = self.loop()
        works: dict[str, Callable[[], object]] = {
            "ours": lambda: self.ours(epochs),
            "autograd": self.by_autograd,
            "loop": loop.epoch,
        }
        found = {name: _ROUND * min(times) for name, times in in_turns(works, turns).items()}
        found["ours"] /= epochs
        far, what = self.differences(), self._what()
        others = {"loop": "DataLoader of users, dense masks", "autograd": "fit with autograd"}
        for way, words in others.items():
            yield row(f"{what}: {words}", CPU_MS, found["ours"], found[way], far[way])
        yield from self._limits(found["ours"])
        everyone = found["ours"] * self.size.organisations / 1e3
        yield row(f"{self.size.name}: all {self.size.organisations}, scaled", "CPU s", everyone)

    def _what(self) -> str:
        steps = _ROUND * self.batches.per_epoch
        return f"{self.size.name}, an organisation, {steps:,} steps"

    def _limits(self, ours: float) -> Iterator[Row]:
        limits, steps = Limits.measured(), _ROUND * self.batches.per_epoch
        sparse, dense = operations(self.network, self.drawn.inputs, self.drawn.pattern)
        yield limits.products("products at observed cells at", _ROUND * sparse, ours)
        yield limits.products("products with all outputs at", _ROUND * dense, ours)
        moved = ADAM_BYTES * self.network.n_parameters * steps
        yield limits.moves("Adam's parameters, moments, gradients at", moved, ours)


def operations(network: AAE, inputs: Inputs, pattern: Pattern) -> tuple[float, float]:
    """Floating-point operations of an epoch's products: at the observed cells, with all outputs.

    A layer has three products, the first layer two.
    """
    rows = int((pattern.columns.lengths > 0).sum())
    hidden, inner = network.hidden, network.code * network.hidden
    layers = 1 + len(network.sides) + 1
    common = 6.0 * rows * inner * layers
    common += 4.0 * rows * hidden * sum(network.sides.values())
    common += 4.0 * len(inputs.values) * hidden
    return common + 6.0 * pattern.nnz * hidden, common + 6.0 * math.prod(
        (rows, network.n_outputs, hidden)
    )
