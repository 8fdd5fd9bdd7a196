"""What the hardware allows: the speed of one thread in what limits training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.core.bench.timing import CPU_MS, Row, in_turns, row

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
    def measured() -> Limits:
        """Measure, as the fastest of several turns in CPU seconds."""
        matrix = torch.ones(_SIDE, _SIDE)
        product = torch.empty_like(matrix)
        source = torch.zeros(_COPIED, dtype=torch.uint8)
        target = torch.zeros_like(source)
        works = {
            "product": lambda: torch.mm(matrix, matrix, out=product),
            "copy": lambda: target.copy_(source),
        }
        found = {name: min(times) / 1e3 for name, times in in_turns(works, _REPEATS).items()}
        return Limits(2 * _SIDE**3 / found["product"], 2 * _COPIED / found["copy"])

    def products(self, what: str, operations: float, ours: float | None = None) -> Row:
        """Make a row: the CPU milliseconds that matrix products alone would take in a round."""
        rate = f"{self.flops / 1e9:.0f} GFLOP/s"
        return row(f"  {what} {rate}", CPU_MS, ours, 1e3 * operations / self.flops)

    def moves(self, what: str, moved: float, ours: float | None = None) -> Row:
        """Make a row: the CPU milliseconds that reading and writing alone would take in a round."""
        rate = f"{self.bandwidth / 1e9:.1f} GB/s"
        return row(f"  {what} {rate}", CPU_MS, ours, 1e3 * moved / self.bandwidth)
