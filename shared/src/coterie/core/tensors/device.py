"""Where and how a run computes: its device as a context, its formats, memory that is kept.

What comes from numpy goes through `torch.as_tensor`, what goes to it through `Tensor.cpu`.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from coterie.core.errors import UserError
from coterie.core.tensors import tree

T = TypeVar("T")
M = TypeVar("M", bound=torch.nn.Module)

CPU = torch.device("cpu")


def choose_device(name: str) -> torch.device:
    """Choose where to compute.

    Args:
        name: "cpu", "cuda", or "auto": the GPU where torch has one to use, else the CPU.

    Raises:
        UserError: a GPU is asked for, and there is none.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return CPU
    if not torch.cuda.is_available():
        raise UserError(
            "'engine.device' is cuda, and torch finds no GPU here (see `coterie doctor`): say "
            "--engine.device auto, or install a torch for this GPU"
        )
    # As exact as the CPU, and the same bits every time: sums of a scatter have no order else.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device("cuda", torch.cuda.current_device())


def default_device() -> torch.device:
    """Where torch's factories make tensors now; what is kept for a process is kept for one device.

    Example:
        >>> default_device()
        device(type='cpu')
    """
    return torch.empty(0).device


def devices(device: torch.device) -> dict[str, Any]:
    """Say to a `lightning.Trainer` where to compute.

    Example:
        >>> devices(torch.device("cuda", 1))
        {'accelerator': 'cuda', 'devices': [1]}
    """
    return {"accelerator": device.type, "devices": 1 if device == CPU else [device.index or 0]}


def computing_on(device: torch.device) -> AbstractContextManager[Any]:
    """Make new tensors on a device inside the block.

    A context slows every call of torch a little, so none is entered where tensors are made there
    anyway.

    Example:
        >>> with computing_on(torch.device("meta")):
        ...     torch.zeros(2).device
        device(type='meta')
    """
    return nullcontext() if device == torch.get_default_device() else device


@contextmanager
def as_written(default: torch.dtype = torch.float32) -> Iterator[None]:
    """Compute inside the block in the formats that the tensors have, whatever is set around it.

    Around it, a Trainer's precision may be autocast or another default format, a test or a caller
    may have switched gradients off. None of it may change what a run computes, nor what it costs:
    nothing is entered that is not needed.

    Args:
        default: format of new tensors inside the block.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), as_written():
        ...     found = torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)
        >>> found.dtype, found.requires_grad
        (torch.float32, True)
    """
    before = torch.get_default_dtype()
    with without_autocast(), ExitStack() as inside:
        if torch.is_inference_mode_enabled():
            inside.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            inside.enter_context(torch.enable_grad())
        if default != before:
            inside.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(default)
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute inside the block in the formats that the tensors have, for what cannot in others.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16), without_autocast():
        ...     found = torch.ones(2, 2) @ torch.ones(2, 2)
        >>> found.dtype
        torch.float32
    """
    with ExitStack() as inside:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                inside.enter_context(torch.autocast(kind, enabled=False))
        yield


def moved(values: T, device: torch.device) -> T:
    """Copy a tree of tensors to a device; what is there already is given back as it is.

    Example:
        >>> here = {"a": torch.ones(2)}
        >>> moved(here, torch.device("cpu")) is here
        True
    """
    if all(leaf.device == device for _, leaf in tree.tensors(values)):
        return values
    return tree.map_tensors(lambda leaf: leaf.to(device), values)


def brought(module: M) -> M:
    """Move a module to where tensors are made, if it is not there.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> brought(layer) is layer
        True
    """
    here = default_device()
    parts = (*module.parameters(), *module.buffers())
    return module if all(part.device == here for part in parts) else module.to(here)


def on_host(make: Callable[[], M]) -> M:
    """Make a module whose first parameters are drawn, then move it to where tensors are made.

    A generator gives other numbers on every kind of device, so the draws are made on the CPU.

    Example:
        >>> on_host(lambda: torch.nn.Linear(2, 1)).weight.shape
        torch.Size([1, 2])
    """
    here = torch.get_default_device()
    with computing_on(CPU):
        made = make()
    return made if here == CPU else made.to(here)


# Numbers below 1e-38, which a processor computes with many times as slowly as with others.


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
    before = tiny_are_zero()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def tiny_are_zero() -> bool:
    """Whether this thread takes them as zero; torch does not tell.

    Example:
        >>> with tiny_as_zero():
        ...     tiny_are_zero()
        True
    """
    return not np.multiply(np.full(1, 2e-38, np.float32), np.float32(0.25)).any()


# Memory that was freed is kept for the next chunk, not given back to the system and asked anew.
#
# glibc returns every large block at once. Each page of the next one has to be mapped and cleared
# again: measured, 8 to 15 % of a round in which a chunk makes and drops some megabytes.

KEPT = 128 << 20
"""Bytes that a process may hold beside what it uses."""
_LARGEST = 64 << 20  # bytes of a block that is kept; in larger ones there is more to do
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@functools.cache
def keep_freed() -> bool:
    """Ask the C library to keep freed memory; return whether it does, which others cannot."""
    mallopt = getattr(_process(), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, KEPT))


def _process() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no handle of the process itself
        return None


# How much memory there is.

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_memory() -> int:
    """Bytes of this machine's memory, or of the part that this process may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(limit.read_text()))
    return min(found)
