"""What a run asks of the whole process while it computes: threads of torch, and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from coterie.core.kernels.switch import kernels
from coterie.core.settings.sections import EngineSettings


@contextmanager
def computing_as(engine: EngineSettings) -> Iterator[None]:
    """Give the process a run's threads and kernels for a while; after it the caller has its own.

    Args:
        engine: section of the run's settings.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(engine.threads)
    try:
        with kernels(engine.kernels == "auto"):
            yield
    finally:
        torch.set_num_threads(before)
