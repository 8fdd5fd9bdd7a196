"""Clipping, padding and noise: middleware that changes a client's releases before they leave it.

`Key.normal` computes in float64 over the whole result at once. A dense upload needs millions of
draws a chunk, so these work on blocks that stay in the cache, take 64 bits for a Laplace draw
and for two normal draws, and take logarithms in the dtype of the result. A float keeps its relative
precision near 0, so float32 loses nothing in the tails.

The bits are those of SHAKE-256 of the client's key. The hash that keys are made of can be turned
round: a number that is 0 before the noise, as of a row that nobody trained on, would give the whole
stream away. The floating-point grid is not hidden (Mironov, CCS 2012).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.privacy.releases import change_releases, releases
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import DenseRows, Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged

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
    """Yield ``(clients, bits)``: 64 random bits a number, ``(k, count)``, k clients at a time."""
    states = key.state.reshape(-1).tolist()
    size = max(1, _BLOCK // max(count, 1))
    for start in range(0, len(states) if count else 0, size):
        part = states[start : start + size]
        drawn = b"".join(_stream(state.to_bytes(8, "big", signed=True), count) for state in part)
        bits = np.frombuffer(drawn, dtype="<i8").reshape(len(part), count)
        yield slice(start, start + size), torch.as_tensor(bits.astype(np.int64))


def _stream(secret: bytes, count: int) -> bytes:
    """So many times 64 bits, of which nobody learns the others or the secret."""
    return hashlib.shake_256(secret).digest(8 * count)


# Padded uploads: the touched rows hidden among random others, the same number for every client.


def pad_rows(rows: TouchedRows, size: int, key: Key) -> TouchedRows:
    """Add random untouched rows, of change 0, until every client sends ``size`` rows.

    This hides how many rows a client touched, and each touched row among the padding. It is no
    formal guarantee: a row that is not sent was certainly not touched.

    Args:
        rows: stacked changes of C clients.
        size: rows that every client sends, at most the table's n.
        key: the clients' own keys, ``(C,)``; they choose the padding.

    Raises:
        UserError: a client touched more than ``size`` rows, or the table has fewer.
    """
    n_clients, n_rows = rows.n_clients, rows.n_rows
    most = int(rows.touched().max()) if n_clients else 0
    if not most <= size <= n_rows:
        raise UserError(
            f"privacy.padded_rows is {size}, but a client changed {most} of {n_rows} rows: "
            f"choose {most} to {n_rows}, or privacy.uploads dense"
        )
    # Touched rows come first (-1), then the others in an order that the client's key draws.
    order = Key(key.state[:, None]).bits(torch.arange(n_rows)) & ((1 << 63) - 1)
    order[rows.index.rows, rows.index.values] = -1
    chosen = torch.topk(order, size, largest=False).indices.sort().values
    offsets = torch.arange(n_clients + 1) * size
    values = rows.values.new_zeros(n_clients * size, rows.width)
    place = torch.searchsorted(
        (chosen + torch.arange(n_clients)[:, None] * n_rows).flatten(),
        rows.index.rows * n_rows + rows.index.values,
    )
    values[place] = rows.values
    return TouchedRows(Ragged(chosen.flatten(), offsets), values, n_rows)


# Clipping and noise: middleware that changes a client's releases before they leave it.
#
# Noise on the touched rows of an item table only would still show which rows those are, so a noisy
# change of rows is sent whole (`DenseRows`) or padded to a declared number of rows.

U = TypeVar("U")
MAX_DENSE_BYTES = 1 << 31


@dataclass(frozen=True)
class Clip:
    """Scale each client's whole upload down to a norm: all its releases together.

    Attributes:
        norm: the largest norm C that leaves a client.
        order: 2 for the L2 norm (with Gaussian noise), 1 for the L1 norm (with Laplace noise).

    Raises:
        UserError: the norm is not a positive number.
    """

    norm: float
    order: Literal[1, 2] = 2

    def __post_init__(self) -> None:
        _check_clip(self.norm)

    def __call__(self, up: U, key: Key) -> U:
        """Return the upload with norms of at most ``norm``; the keys are not used."""
        size = upload_norms(up, self.order)
        if size is None:
            return up
        factor = shortening(size, self.norm)
        return change_releases(up, lambda _, value: scaled(value, factor))


@dataclass(frozen=True)
class EntryClip:
    """Clamp each number of a client's releases to [-b, b], a public bound.

    Unlike `Clip` it changes no entry for what another one is, so that an entry has a guarantee of
    its own.

    Attributes:
        bound: b.

    Raises:
        UserError: the bound is not a positive number.

    Example:
        >>> from coterie.core.tensors.stacked import Ragged
        >>> rows = TouchedRows(Ragged.from_lists([[2]]), torch.tensor([[0.5, -9.0]]), 3)
        >>> _clamped(rows, 1.0).values.tolist()
        [[0.5, -1.0]]
    """

    bound: float

    def __post_init__(self) -> None:
        _check_clip(self.bound)

    def __call__(self, up: U, key: Key) -> U:
        """Return the upload with entries of at most ``bound``; the keys are not used."""
        return change_releases(up, lambda _, value: _clamped(value, self.bound))


@dataclass(frozen=True)
class Noise:
    """Independent noise on every number that a client releases, drawn with the client's own key.

    Attributes:
        scale: of the distribution, in units of what is released (not of the clip).
        uploads: "dense" or "padded".
        padded_rows: number of rows that every client sends, with "padded".

    Raises:
        UserError: the scale is not positive, or ``uploads`` would show the touched rows.
    """

    scale: float
    uploads: Literal["dense", "padded"] = "dense"
    padded_rows: int | None = None

    name: ClassVar[str]
    draw: ClassVar[Draw]

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise UserError(f"{self.name} noise needs a positive privacy.scale, not {self.scale}")
        if self.uploads not in ("dense", "padded"):
            raise UserError(
                f"{self.name} noise on {self.uploads} rows only would still show which rows those "
                "are: set privacy.uploads to dense (or padded)"
            )
        if (self.uploads == "padded") != (self.padded_rows is not None):
            raise UserError("padded uploads need padded_rows, their number of rows, and only they")

    def __call__(self, up: U, key: Key) -> U:
        """Return the noisy upload.

        Args:
            up: the stacked upload; `Rows` become `DenseRows` (or padded `TouchedRows`).
            key: the clients' own keys, ``(C,)``.

        Raises:
            UserError: integers leave the client, or the dense tables of a chunk are over 2 GiB.
        """
        return change_releases(up, lambda path, value: self._noisy(path, value, key))

    def _noisy(self, path: str, value: Any, key: Key) -> Any:
        key = key.fold("noise", path)
        if isinstance(value, Rows):
            return self.rows(value, key)
        noise = self._draw(key, value[0].numel() if len(value) else 0, value.dtype)
        return value + noise.reshape(value.shape)

    def rows(self, rows: Rows, key: Key) -> Rows:
        """Return the changes with noise, whole or padded; keys and errors as for an upload."""
        wire = rows.wire()
        if isinstance(wire, DenseRows):
            return DenseRows(self._table(wire, key).add_(wire.values))
        if self.padded_rows is not None:
            return self._padded(wire, self.padded_rows, key)
        table = self._table(wire, key)
        place = wire.index.rows * wire.n_rows + wire.index.values
        table.reshape(-1, wire.width).index_add_(0, place, wire.values)
        return DenseRows(table)

    def _table(self, rows: TouchedRows | DenseRows, key: Key) -> Tensor:
        """Noise for every row of the table, ``(C, n, d)``."""
        _check_memory(rows)
        noise = self._draw(key, rows.n_rows * rows.width, rows.values.dtype)
        return noise.reshape(rows.n_clients, rows.n_rows, rows.width)

    def _padded(self, rows: TouchedRows, size: int, key: Key) -> TouchedRows:
        padded = pad_rows(rows, size, key.fold("padding"))
        noise = self._draw(key, size * rows.width, rows.values.dtype)
        values = padded.values + noise.reshape(padded.values.shape)
        return TouchedRows(padded.index, values, rows.n_rows)

    def _draw(self, key: Key, count: int, dtype: torch.dtype) -> Tensor:
        return type(self).draw(key, count, dtype).mul_(self.scale)


@dataclass(frozen=True)
class LaplaceNoise(Noise):
    """Add Laplace(0, λ) to every number released, the whole item table included (F³CRec, §5.6).

    The scale is λ, so that the variance is 2 λ²; the rest is as in `Noise`.
    """

    name: ClassVar[str] = "laplace"
    draw: ClassVar[Draw] = staticmethod(laplace)


@dataclass(frozen=True)
class GaussianNoise(Noise):
    """Add N(0, σ²) to every number released, the whole item table included.

    The scale is σ, the standard deviation; the rest is as in `Noise`.
    """

    name: ClassVar[str] = "gaussian"
    draw: ClassVar[Draw] = staticmethod(normal)


NOISES = {kind.name: kind for kind in (LaplaceNoise, GaussianNoise)}
"""The distributions by name."""


def upload_norms(up: Any, order: Literal[1, 2] = 2) -> Tensor | None:
    """L2 or L1 norm of each client's whole upload, all its releases, ``(C,)``; None without any."""
    values = releases(up)
    return norms_of(values, order) if values else None


def norms_of(values: Sequence[Rows | Tensor], order: Literal[1, 2] = 2) -> Tensor:
    """L2 or L1 norm of each client's part of some values, all together, ``(C,)``."""
    total = torch.stack([_power(value, order) for value in values]).sum(0).clamp_min(0)
    return total.sqrt() if order == 2 else total


def shortening(size: Tensor, norm: float) -> Tensor:
    """Factors by which what has norms ``size``, ``(C,)``, gets no longer than ``norm``."""
    return torch.where(size > norm, norm / size, torch.ones_like(size))


def _check_clip(clip: float) -> None:
    if not (clip > 0 and math.isfinite(clip)):
        raise UserError(f"privacy.clip must be a positive number, not {clip}")


def _power(value: Rows | Tensor, order: int) -> Tensor:
    """Sum of absolute values or of squares of each client's part, ``(C,)``."""
    if isinstance(value, Tensor):
        flat = value[:, None].flatten(1)
        return flat.abs().sum(1) if order == 1 else flat.square().sum(1)
    if order == 2:
        return value.squared_norm()
    wire = value.wire()
    if isinstance(wire, DenseRows):
        return wire.values.abs().sum((1, 2))
    norm = wire.values.new_zeros(wire.n_clients)
    return norm.index_add_(0, wire.index.rows, wire.values.abs().sum(1))


def scaled(value: Any, factor: Tensor) -> Any:
    """Multiply each client's part by its factor, ``(C,)``."""
    if isinstance(value, Tensor):
        return value * tree.columns(factor, value)
    return value.scaled(factor)


def _clamped(value: Any, bound: float) -> Any:
    if isinstance(value, Tensor):
        return value.clamp(-bound, bound)
    wire = value.wire()
    return replace(wire, values=wire.values.clamp(-bound, bound))


def _check_memory(rows: TouchedRows | DenseRows) -> None:
    one = rows.n_rows * rows.width * rows.element_size
    if rows.n_clients * one > MAX_DENSE_BYTES:
        fitting = max(1, MAX_DENSE_BYTES // (8 * one))
        raise UserError(
            f"dense uploads of {rows.n_clients} clients at once need "
            f"{rows.n_clients * one / 2**30:.1f} GiB: set engine.chunk to {fitting} or less"
        )
