"""Noise from hashes: element j of client c is a pure function of (key of c, j).

`Key.normal` computes in float64 over the whole result at once. A dense upload needs millions of
draws a chunk, so these work on blocks that stay in the cache, take one hash for a Laplace draw and
one for two normal draws, and take logarithms in the dtype of the result. A float keeps its relative
precision near 0, so float32 loses nothing in the tails.

The hash is fast, not cryptographic, and the floating-point grid is not hidden (Mironov, CCS 2012):
right for experiments. A deployment draws from the device's secure source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key

Draw = Callable[[Key, int, torch.dtype], Tensor]

_BLOCK = 1 << 18  # draws at a time: int64 temporaries of 2 MB
_LOW_63 = (1 << 63) - 1
_LOW_40 = (1 << 40) - 1
_LOW_24 = (1 << 24) - 1


def laplace(key: Key, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw Laplace numbers of scale 1 (variance 2), ``(C, count)``.

    A sign bit, and minus the logarithm of a 63-bit uniform number.

    Args:
        key: the clients' keys, ``state`` of shape ``(C,)``.
        count: draws for each client.
        dtype: float32 or float64.
    """
    out = torch.empty(key.state.numel(), count, dtype=dtype)
    for part, bits in _blocks(key, count):
        magnitude = ((bits & _LOW_63) | 1).to(dtype).mul_(2.0**-63).log_().neg_()
        torch.where(bits < 0, -magnitude, magnitude, out=out[part])
    return out


def normal(key: Key, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers, ``(C, count)``; Box-Muller, two from each hash.

    40 bits give the radius (no draw beyond 7.6), 24 bits the angle. Arguments as in `laplace`.
    """
    half = (count + 1) // 2
    out = torch.empty(key.state.numel(), 2 * half, dtype=dtype)
    for part, bits in _blocks(key, half):
        uniform = ((bits >> 24) & _LOW_40).to(dtype).add_(0.5).mul_(2.0**-40)
        radius = uniform.log_().mul_(-2.0).sqrt_()
        angle = (bits & _LOW_24).to(dtype).mul_(2.0 * torch.pi * 2.0**-24)
        torch.mul(radius, angle.cos(), out=out[part, :half])
        torch.mul(radius, angle.sin(), out=out[part, half:])
    return out[:, :count]


def _blocks(key: Key, count: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(clients, bits)``: 64 random bits a counter, ``(k, count)``, k clients at a time."""
    counter = torch.arange(count)
    size = max(1, _BLOCK // max(count, 1))
    for start in range(0, key.state.numel() if count else 0, size):
        part = slice(start, start + size)
        yield part, Key(key.state[part, None]).bits(counter)
