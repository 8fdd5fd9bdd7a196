"""The machine: the speed of one of its threads, and how much memory this process uses of it."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.core.timing import CPU_MS, Row, in_turns, row
from coterie.core.tensors import tree

_PROCESS = Path("/proc/self")
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


def live_bytes() -> int:
    """Bytes of all tensors that this process holds, each storage once."""
    return sum(_storages().values())


def nbytes(stack: object) -> int:
    """Bytes of the tensors in a tree."""
    return sum(value.numel() * value.element_size() for _, value in tree.tensors(stack))


class AfterEveryOperation(TorchDispatchMode):
    """Count all tensors after every operation inside the block; ``most`` is the largest count."""

    most = 0

    def __enter__(self) -> Self:
        self._known = _storages()
        gc.freeze()  # what is there already is not looked through again
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        gc.unfreeze()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, sum((self._known | _storages()).values()))
        return result


def _storages() -> dict[int, int]:
    """Bytes of every storage, by its address."""
    found = {}
    with torch._C.DisableTorchFunctionSubclass():  # else a stand-in refuses to be looked at
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu":
                storage = _without_layers(thing).untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return found


def _without_layers(tensor: torch.Tensor) -> torch.Tensor:
    """Give what `torch.func` has wrapped for `vmap` or `grad`, which has the storage."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def forget_peak() -> None:
    """Start a new peak, where the system can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # else a round would reuse what others have freed
        trim(0)
    if (_PROCESS / "clear_refs").exists():
        (_PROCESS / "clear_refs").write_text("5")


def most_resident() -> int:
    """Largest resident memory, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident() -> int:
    """Resident memory, in bytes; where the system does not tell, the largest so far."""
    forget_peak()
    return _status("VmRSS") or most_resident()


def _status(field: str) -> int:
    """Read from the system, which gives kB; 0 if it does not."""
    if (_PROCESS / "status").exists():
        for line in (_PROCESS / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    return 0
