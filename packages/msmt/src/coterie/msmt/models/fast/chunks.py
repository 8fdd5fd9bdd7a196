"""Pieces of a tensor that stay in the processor's cache while several operations pass over them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

BYTES = 1 << 20


def pieces(start: int, stop: int, one: Tensor) -> Iterator[slice]:
    """Cut a range of things like ``one`` into pieces of about a MB; on a GPU there is one piece.

    Example:
        >>> import torch
        >>> list(pieces(2, 9, torch.zeros(1 << 16)))
        [slice(2, 6, None), slice(6, 9, None)]
    """
    step = max(1, stop - start)
    if one.is_cpu:
        step = min(step, max(1, BYTES // max(1, one.numel() * one.element_size())))
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def chunks(tensor: Tensor) -> Iterator[slice]:
    """Cut the first axis of a tensor that is not empty."""
    return pieces(0, len(tensor), tensor[0])
