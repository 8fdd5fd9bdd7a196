"""What the hardware allows: the time that a round's arithmetic and its data alone would take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from coterie.continual.bench.rounds import Engine

_REPEATS = 7
_SIDE = 1024  # of the square matrices whose product is timed
_COPIED = 64 << 20  # bytes of the tensor whose copy is timed


@dataclass(frozen=True)
class Limits:
    """Speed of one thread.

    Attributes:
        flops: floating-point operations a second in a large matrix product.
        bandwidth: bytes a second, read and written, in a large copy.
    """

    flops: float
    bandwidth: float

    @staticmethod
    def measured(dtype: torch.dtype = torch.float32) -> Limits:
        """Measure, as medians of CPU seconds."""
        matrix = torch.ones(_SIDE, _SIDE, dtype=dtype)
        product = torch.empty_like(matrix)
        source = torch.zeros(_COPIED, dtype=torch.uint8)
        target = torch.zeros_like(source)
        multiplied = _median(lambda: torch.mm(matrix, matrix, out=product))
        copied = _median(lambda: target.copy_(source))
        return Limits(2 * _SIDE**3 / multiplied, 2 * _COPIED / copied)

    def of(self, engine: Engine) -> Iterator[dict[str, Any]]:
        """Two bounds on one round: its three matrix products, and its data moved once."""
        data, model = engine.work.blocks[engine.block], engine.settings.model
        table = engine.down().items
        samples = data.train.lengths * (1 + model.negatives)
        batches = int(((samples + model.batch_size - 1) // model.batch_size).sum())
        # Scores, gradients of users and changes of items: (batches, n_items) x (n_items, d) each.
        operations = 3 * 2 * batches * table.numel() * model.epochs
        vectors = data.ids.numel() * table.shape[1]
        once = int(samples.sum()) * (8 + table.element_size()) * model.epochs
        moved = once + 2 * (table.numel() + vectors) * table.element_size()
        rate = f"{self.flops / 1e9:.0f} GFLOP/s"
        yield _row(f"  its matrix products at {rate}", 1e3 * operations / self.flops)
        rate = f"{self.bandwidth / 1e9:.1f} GB/s"
        yield _row(f"  its samples and tables moved once at {rate}", 1e3 * moved / self.bandwidth)


def _row(name: str, reference: float) -> dict[str, Any]:
    row = dict.fromkeys(("name", "unit", "ours", "reference", "ratio", "max_abs_diff"))
    return row | {"name": name, "unit": "CPU ms a round", "reference": reference}


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times[1:])
