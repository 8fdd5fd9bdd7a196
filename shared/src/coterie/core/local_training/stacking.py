"""Stacks of clients: a function of one run on them, how many there are, threads beside others."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from coterie.core.errors import Unstackable, UserError
from coterie.core.local_training.linear_layers import LARGE, room
from coterie.core.tensors import tree

log = logging.getLogger(__name__)

T = TypeVar("T")

_RANDOM = "vmap: called random operation"


def stacked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function of one client into one of clients stacked along the first axis.

    A single client is served by a plain call. More than one are vectorised by `torch.func.vmap`.

    Args:
        function: pure, without random draws; arguments and result are dicts or tuples of tensors.

    Raises:
        Unstackable: when called on several clients, and torch cannot vectorise the function.
        UserError: when called, and the function draws random numbers, which no key governs.
    """

    def call(*arguments: Any) -> Any:
        leaves = [leaf for _, leaf in tree.tensors(arguments)]
        if leaves and all(leaf.shape[0] == 1 for leaf in leaves):
            return _call_once(function, arguments)

        def together() -> Any:
            with _without_fallback():
                return _vmapped(function, arguments)

        return or_unstackable(
            together, lambda: _call_once(function, tree.map_tensors(_first, arguments))
        )

    return call


def _vmapped(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """`vmap` over a flat list of tensors; the walk through dicts of its own takes a third of it."""

    def flat(*leaves: Tensor) -> Any:
        parts = iter(leaves)
        return function(*tree.map_tensors(lambda _: next(parts), arguments))

    return vmap(flat)(*(leaf for _, leaf in tree.tensors(arguments)))


def or_unstackable(together: Callable[[], T], alone: Callable[[], Any]) -> T:
    """Run something for several clients; where it fails, find out whether one of them could.

    What torch says where a function has no vectorised form differs from operation to operation and
    from version to version. An error of the function's own is one for a single client too.

    Args:
        together: for several clients.
        alone: the same for one of them.

    Raises:
        Unstackable: it fails for several alone.
        UserError: it draws random numbers, which no key governs.
    """
    try:
        return together()
    except (UserError, Unstackable):
        raise
    except Exception as error:
        if _RANDOM in str(error):
            raise _random() from error
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error):
            raise
        alone()
        raise Unstackable(str(error)) from error


def concatenate(parts: list[T]) -> T:
    """Stack stacked trees of one structure, one after the other."""
    return tree.map_tensors(lambda *leaves: torch.cat(leaves), parts[0], *parts[1:])


@contextmanager
def _without_fallback() -> Iterator[None]:
    """Torch's own fallback runs an operation client by client, far slower than a plain loop."""
    functorch: Any = torch._C._functorch
    with _WITHOUT.lock:
        if not _WITHOUT.threads:
            _WITHOUT.before = functorch._is_vmap_fallback_enabled()
            functorch._set_vmap_fallback_enabled(False)
        _WITHOUT.threads += 1
    try:
        yield
    finally:
        with _WITHOUT.lock:
            _WITHOUT.threads -= 1
            if not _WITHOUT.threads:
                functorch._set_vmap_fallback_enabled(_WITHOUT.before)


class _Without:
    """The switch is the process's: the first thread turns it, the last one back."""

    def __init__(self) -> None:
        self.lock, self.threads, self.before = threading.Lock(), 0, True


_WITHOUT = _Without()


def _first(leaf: Tensor) -> Tensor:
    return leaf[:1]


def _call_once(function: Callable[..., Any], arguments: Any) -> Any:
    with drawing_nothing():
        result = function(*tree.as_one(arguments))
    return tree.as_stack(result)


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Check that nothing is drawn from torch's generator inside.

    Raises:
        UserError: something is.
    """
    before = _generator_state()
    yield
    if before != _generator_state():
        raise _random()


def _generator_state() -> bytes:
    """Of torch's generator; to read it is no part of what is recorded."""
    with torch._C.DisableTorchFunction():
        return torch.get_rng_state().numpy().tobytes()


def _random() -> UserError:
    return UserError(
        "a local loss draws random numbers (dropout?), which would differ from chunk to chunk: "
        "set dropout to 0 or use coterie.core.local_training.dropout.KeyedDropout, whose masks "
        "come from the clients' keys"
    )


@functools.cache
def say_one_by_one(why: str) -> None:
    """Note that clients are not stacked, once for each reason."""
    log.warning("clients are trained one after the other: %s", why)


def say_unstackable(error: Unstackable, n_clients: int) -> None:
    """Note why several clients are not stacked; of one it is raised."""
    if n_clients == 1:
        raise error
    say_one_by_one(str(error).split("\n")[0][:200])


# How many clients are trained side by side: as many as the cache holds, where that is faster.
#
# A stack shares the price of torch's calls among its clients, which is most of a step of a small
# model. A step of a large one is limited by memory instead, and goes through less of it alone.
# Measured on two cores (`docs/performance.md`); results do not depend on it.

CACHE = 8 << 20
"""Bytes of parameters that a stack may have: what several megabytes of cache hold most of."""
_LEAST = 4
"""Fewer are faster one after the other, without what vectorising costs in every call."""
_SHARING = 8
"""Clients whose large weights are one, until their steps are added to it."""


@dataclass(frozen=True)
class StackWidth:
    """Clients of a stack on the CPU.

    A convolution of stacked clients is one of groups, for which there is no fast kernel.

    Attributes:
        cached: as many as the cache holds.
        deferrable: large weights of linear layers, by name.
        room: samples, less than which their steps can be added up at the end.

    Example:
        >>> StackWidth.of(nn.Linear(1023, 256)).choose(100)
        8
    """

    cached: int
    deferrable: tuple[str, ...]
    room: int

    @staticmethod
    def of(module: nn.Module) -> StackWidth:
        """Choose for the form of a model."""
        each = sum(value.numel() * value.element_size() for value in module.parameters())
        width = CACHE // max(each, 1)
        named = {id(value): name for name, value in module.named_parameters()}
        large = {
            named[id(part.weight)]: room(*part.weight.shape)
            for part in module.modules()
            if type(part) is nn.Linear and part.weight.numel() >= LARGE and id(part.weight) in named
        }
        if any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()):
            return StackWidth(1, tuple(large), 0)
        return StackWidth(width, tuple(large), min(large.values(), default=0))

    def choose(self, samples: int) -> int:
        """Give the width.

        Args:
            samples: that a client sees in a round, at most.
        """
        if self.cached >= _LEAST:
            return self.cached
        return _SHARING if samples <= self.room else 1


# Whether local training runs beside other local training, in a thread of its own.

_BESIDE: ContextVar[bool] = ContextVar("chunks run beside one another", default=False)


@contextmanager
def beside_others() -> Iterator[None]:
    """Say so, inside.

    Example:
        >>> with beside_others():
        ...     runs_beside_others()
        True
    """
    token = _BESIDE.set(True)
    try:
        yield
    finally:
        _BESIDE.reset(token)


def runs_beside_others() -> bool:
    """Whether other threads train at the same time."""
    return _BESIDE.get()
