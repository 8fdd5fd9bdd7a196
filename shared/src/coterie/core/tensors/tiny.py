"""Numbers below 1e-38, which a processor computes with many times as slowly as with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def tiny_as_zero() -> Iterator[None]:
    """Take float32 numbers below 1.2e-38 as zero inside the block, in torch and numpy on a CPU.

    Weight decay makes such numbers of every parameter that nothing else moves. Beside others they
    are rounded away in any sum.

    Example:
        >>> with tiny_as_zero():
        ...     float(torch.tensor([1e-38]).mul(0.5))
        0.0
    """
    before = _are_zero()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _are_zero() -> bool:
    """Whether this thread takes them as zero; torch does not tell."""
    return not np.multiply(np.full(1, 2e-38, np.float32), np.float32(0.25)).any()
