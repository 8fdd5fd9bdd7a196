"""Counter-based randomness: a draw is a pure function of (seed, round, client, position).

A stream of random numbers would make results depend on the order in which clients run. Here every
number is the hash of its coordinates, so chunks, engines and arrival order cannot change it.
The hash is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import UserError

_GENERATORS = threading.RLock()  # torch's are the process's: one thread at a time seeds them
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_ALL = (1 << 64) - 1
_MIX1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX2 = 0x94D049BB133111EB - (1 << 64)
# Arrays without an axis: numpy takes half as long over them as over its scalars.
_UNSIGNED = tuple(
    np.array(number & _ALL, np.uint64) for number in (_GOLDEN, _MIX1, _MIX2, 30, 27, 31)
)
_MANY = 1 << 15  # elements from which on torch sorts whole numbers by their digits


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's own is arithmetic)."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """One output of SplitMix64 for each int64 state."""
    if x.device.type != "cpu":
        return _mix_there(x)
    mixed = _stirred(x.numpy().view(np.uint64))
    return torch.from_numpy(mixed.view(np.int64))


def _stirred(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mix` in numpy, which shifts unsigned numbers logically: half the passes."""
    mixed = np.add(state, _UNSIGNED[0], out=np.empty_like(state))
    high = np.right_shift(mixed, _UNSIGNED[3], out=np.empty_like(mixed))
    mixed ^= high
    mixed *= _UNSIGNED[1]
    mixed ^= np.right_shift(mixed, _UNSIGNED[4], out=high)
    mixed *= _UNSIGNED[2]
    mixed ^= np.right_shift(mixed, _UNSIGNED[5], out=high)
    return mixed


def _folded(state: Tensor, parts: list[int | Tensor]) -> Tensor:
    """Fold parts into the states of clients."""
    mine = state.numpy().view(np.uint64)
    for part in parts:
        if isinstance(part, Tensor):
            mine = _stirred(mine ^ _stirred(part.numpy().view(np.uint64)))
        else:
            mine = _stirred(mine ^ np.uint64(_mix_number(part) & _ALL))
    return torch.from_numpy(mine.view(np.int64))


def _mix_there(x: Tensor) -> Tensor:
    """`_mix` on another device."""
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def _mix_number(x: int) -> int:
    """`_mix` of one Python number, which is much faster than on a tensor."""
    x = (x + _GOLDEN) & _ALL
    x = ((x ^ (x >> 30)) * _MIX1) & _ALL
    x = ((x ^ (x >> 27)) * _MIX2) & _ALL
    x ^= x >> 31
    return x - (1 << 64) if x >> 63 else x


def _mixed(x: Any) -> Any:
    return _mix(x) if isinstance(x, Tensor) else _mix_number(x)


@dataclass(frozen=True)
class Key:
    """The address of a random draw: one key, or one for each client.

    Attributes:
        state: int64, ``()`` for a single key or ``(C,)`` for one key a client.

    Example:
        >>> key = Key.from_seed(0).fold("round", 3)
        >>> of_clients = key.fold(torch.tensor([7, 9]))
        >>> a, b = of_clients.uniform(2)
        >>> torch.equal(b, key.fold(torch.tensor([9])).uniform(2)[0])
        True
    """

    state: Tensor

    @staticmethod
    def from_seed(seed: int) -> Key:
        """The root key of a run.

        Raises:
            UserError: the seed does not fit into 64 bits.
        """
        if not -(1 << 63) <= seed < 1 << 63:
            raise UserError(f"the seed {seed} does not fit into 64 bits: choose a smaller one")
        return Key(_mix(torch.tensor(seed, dtype=torch.int64)))

    def fold(self, *parts: str | int | Tensor) -> Key:
        """Derive a key: by name, by number, or, with a ``(C,)`` tensor of ids, one key a client."""
        state: Tensor | int = self.state
        if self._is_number() and not any(isinstance(part, Tensor) for part in parts):
            state = int(self.state)
        numbers = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in parts]
        if isinstance(state, Tensor) and state.is_cpu:
            return Key(_folded(state, numbers))
        for number in numbers:
            state = _mixed(state ^ _mixed(number))
        if isinstance(state, Tensor):
            return Key(state)
        return Key(torch.full_like(self.state, state))

    def take(self, index: Tensor) -> Key:
        """Keys of the clients ``index``, ``(K,)`` int64."""
        return Key(self.state.index_select(0, index))

    def bits(self, counter: Tensor) -> Tensor:
        """Hash counters: 64 random bits each, as int64; number ``counter`` of SplitMix64's stream.

        Args:
            counter: int64, any shape that broadcasts against ``state``; draws with the same
                counter are the same.
        """
        return _mix(self.state + counter * _GOLDEN)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform numbers in [0, 1): ``(*shape)`` for a single key, ``(C, *shape)`` for C keys."""
        return unit(self._grid(shape), dtype)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers (Box-Muller), shaped as in `uniform`."""
        radius = (
            -2.0 * torch.log1p(-self.fold("radius").uniform(*shape, dtype=torch.float64))
        ).sqrt()
        angle = (2.0 * torch.pi) * self.fold("angle").uniform(*shape, dtype=torch.float64)
        return (radius * torch.cos(angle)).to(dtype)

    def integers(self, high: Tensor | int, counter: Tensor) -> Tensor:
        """Uniform integers in [0, high), one a counter (``high`` far below 2^31)."""
        return _shift(self.bits(counter), 32).mul_(high).bitwise_right_shift_(32)

    def unsigned(self) -> NDArray[np.uint64]:
        """The states as numpy's unsigned numbers, for a compiled loop; nothing is copied."""
        return self.state.contiguous().numpy().view(np.uint64)

    def seed(self) -> int:
        """A seed for a foreign generator (numpy, scikit-learn), in [0, 2^31)."""
        return int(_shift(self.state, 33))

    def _is_number(self) -> bool:
        return self.state.numel() == 1 and self.state.device.type == "cpu"

    @contextmanager
    def torch_rng(self) -> Iterator[None]:
        """Seed torch's global generators inside the block only.

        That is the CPU's, for ``nn.Module.__init__`` by `coterie.core.tensors.device.on_host`, and
        that of the GPU on which tensors are made, for dropout.
        """
        device, seed = torch.get_default_device(), self.seed()
        gpus = [device.index] if device.type == "cuda" else []
        with _GENERATORS, torch.random.fork_rng(devices=gpus):
            torch.random.default_generator.manual_seed(seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu].manual_seed(seed)
            yield

    def _grid(self, shape: tuple[int, ...]) -> Tensor:
        count = torch.arange(math.prod(shape)).reshape(shape)
        return Key(self.state.reshape(self.state.shape + (1,) * len(shape))).bits(count)


def unit(bits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Map 64 random bits to [0, 1): 24 bits for float32, 53 for float64."""
    if dtype == torch.float64:
        return _shift(bits, 11).to(dtype) * 2.0**-53
    return _shift(bits, 40).to(dtype) * 2.0**-24


def shuffle_rows(key: Key, row: Tensor, position: Tensor) -> Tensor:
    """Order in which a keyed shuffle within each row visits the elements.

    Args:
        key: one key an element, ``state`` of shape ``(n,)``; equal within a row.
        row: ``(n,)`` int64 row numbers below 2^20.
        position: ``(n,)`` int64 position of each element in its row.

    Returns:
        ``(n,)`` int64 indices: by ascending row, the elements of a row in random order.

    Example:
        >>> row, position = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 0])
        >>> keys = Key.from_seed(1).fold(torch.tensor([5, 6])).take(row)
        >>> sorted(shuffle_rows(keys, row, position)[:3].tolist())
        [0, 1, 2]
    """
    places = (row << 43) | _shift(key.bits(position), 21)
    if places.device.type != "cpu":
        return places.argsort()
    if places.numel() >= _MANY:
        return places.sort(stable=True).indices  # by their digits: half the time of numpy's
    return torch.from_numpy(np.argsort(places.numpy()))  # half the time of torch's
