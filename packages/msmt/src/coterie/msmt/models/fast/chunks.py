"""Pieces of a tensor that stay in the processor's cache while several operations pass over them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

_BYTES = 1 << 20


def chunks(tensor: Tensor) -> Iterator[slice]:
    """Cut the first axis of a tensor into pieces of about a MB; on a GPU there is one piece."""
    rows = len(tensor)
    step = rows
    if tensor.is_cpu and rows:
        step = max(1, _BYTES * rows // max(1, tensor.numel() * tensor.element_size()))
    for start in range(0, rows, step or 1):
        yield slice(start, min(start + step, rows))
