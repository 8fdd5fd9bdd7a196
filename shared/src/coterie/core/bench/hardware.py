"""What the hardware allows: the speed of one thread in what limits training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

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
        """Measure, as the fastest of several turns in CPU seconds."""
        matrix = torch.ones(_SIDE, _SIDE, dtype=dtype)
        product = torch.empty_like(matrix)
        source = torch.zeros(_COPIED, dtype=torch.uint8)
        target = torch.zeros_like(source)
        multiplied = _fastest(lambda: torch.mm(matrix, matrix, out=product))
        copied = _fastest(lambda: target.copy_(source))
        return Limits(2 * _SIDE**3 / multiplied, 2 * _COPIED / copied)


def _fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times[1:])
