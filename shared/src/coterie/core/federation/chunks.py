"""Cut clients into chunks: how many fit into one stacked call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.client import Client

WORKING_MEMORY = 32 << 20
"""Bytes that a chunk may take by default; measured, larger chunks are hardly faster."""
_AT_LEAST, _MOST = 4, 256 << 20
"""Large clients are so many together all the same, in so many bytes at most."""
_GPU_SHARE = 8
"""Part of a GPU's memory that a chunk may take: estimates are from below."""


def working_memory(device: torch.device) -> int:
    """Bytes that a chunk may take: what a cache holds, of a GPU a share of all that it has.

    It does not depend on what is free, so that the chunks of a run are the same every time.
    """
    if device.type != "cuda":
        return WORKING_MEMORY
    return int(torch.cuda.get_device_properties(device).total_memory) // _GPU_SHARE


def fitting(footprint: Tensor, memory: int = WORKING_MEMORY) -> list[int]:
    """Cut clients into stacks that fit into memory: how many are in each.

    Several stacks are of about the same size and even in number, so that two processes have the
    same to do.

    Args:
        footprint: ``(C,)`` bytes that each takes, in their order.
        memory: bytes of a stack; more where single clients take most of it.

    Example:
        >>> fitting(torch.full((9,), WORKING_MEMORY // 4))
        [2, 2, 2, 3]
    """
    if not len(footprint):
        return []
    memory = max(memory, min(_AT_LEAST * int(footprint.max()), _MOST))
    filled = footprint.cumsum(0)
    total = int(filled[-1])
    if (count := -(-total // memory)) > 1:
        memory = -(-total // (count + count % 2))
    counts = filled.sub_(1).clamp_min_(0).div_(memory, rounding_mode="floor").bincount()
    return counts[counts > 0].tolist()


def chunks(
    client: Client[Any, Any], data: Any, down: Any, memory: int, size: int | None
) -> Iterator[Tensor]:
    """Positions of the clients, ``(K,)`` ascending, chunk by chunk.

    Args:
        client: says what its clients take (`footprint`), and how much they have to do (`work`).
        data: of C clients.
        down: what they are sent.
        memory: bytes of a chunk.
        size: clients of a chunk; None = as many as fit into ``memory``.
    """
    order, counts = _cut(client, data, down, memory, size)
    for part in torch.split(order, counts):
        yield part if len(counts) == 1 else part.sort().values


def _cut(
    client: Client[Any, Any], data: Any, down: Any, memory: int, size: int | None
) -> tuple[Tensor, list[int]]:
    """Positions of the clients, those of equal work together, and how many each chunk takes."""
    n_clients = len(data.ids)
    footprint = None if size else client.footprint(data, down)
    most = (size or n_clients) if footprint is None else n_clients
    if most >= n_clients and (footprint is None or int(footprint.sum()) <= memory):
        return torch.arange(n_clients), [n_clients] * bool(n_clients)
    work = client.work(data)
    order = torch.arange(n_clients)
    if work is not None:
        order = torch.argsort(work, descending=True, stable=True)
    if footprint is None:
        return order, [min(most, n_clients - first) for first in range(0, n_clients, most)]
    return order, fitting(footprint.take(order), memory)
