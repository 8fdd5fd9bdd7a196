"""How much memory this process uses: its tensors, counted, and what the system says."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.tensors import tree

_PROCESS = Path("/proc/self")


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
