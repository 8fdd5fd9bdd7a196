"""What a module computes with beside tensors that it is given and parameters that are trained.

A loss may read attributes of its module, of objects that these hold, closures and globals: a
weight that a callback raises, a counter, a schedule. A copy of the module, and a step that is
recorded, are good only while none of these has changed. `reading` lists them all once a round, not
at every step.
"""

from __future__ import annotations

import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.local_training.alone import STATISTICS, statistics_of
from coterie.core.tensors.saved import digest

Reading = tuple[Any, ...]
"""Equal as long as nothing has changed."""
_MOST = 10_000
"""Values of a reading; to list more would take longer than to do without."""
_BYTES = 1 << 20
"""Largest array whose numbers are looked at."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
_SIMPLE = {bool, int, str, type(None)}
"""Equal to themselves, and told by `==` from one another as far as it matters."""
_CONTAINERS = (list, tuple, set, frozenset, deque)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, staticmethod, classmethod)
_OTHERS = sys.stdlib_module_names | {"torch", "numpy", "lightning", "torchmetrics", "transformers"}
_OPAQUE = {"logging", "threading", "_thread", "_io", "weakref", "wandb", "lightning", "torch._C"}
DERIVED = "derived"
"""A class says by this name which of its attributes follow from the others; they are not read."""
_OF_MODULES = {"_parameters", "_buffers", "_modules"}


class Unwatchable(Exception):
    """What a method reads is too much to look at, or cannot be looked at, as a generator."""


def reading(*roots: Any) -> Reading:
    """List what modules and functions read beside the tensors that training gives them.

    Args:
        roots: modules, functions; None is allowed.

    Raises:
        Unwatchable: it cannot be listed.

    Example:
        >>> module = nn.Linear(1, 1)
        >>> before = reading(module)
        >>> module.weight_of_loss = 0.5
        >>> reading(module) == before, reading(module) == reading(module)
        (False, True)
    """
    walk = _Walk()
    return tuple(walk.of(root) for root in roots)


class _Itself:
    """Equal to nothing but itself, and kept, so that nothing else gets its identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


class _Walk:
    """One walk through all that can be reached."""

    def __init__(self) -> None:
        self._left = _MOST
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def of(self, value: Any) -> Any:
        """Look at a value and at what it holds."""
        self._left -= 1
        if self._left < 0:
            raise Unwatchable
        kind = type(value)
        if kind in _PLAIN:
            return (kind, value) if value == value else (kind, "nan")
        if id(value) in self._seen:
            return (_Walk, self._seen[id(value)])
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        if isinstance(value, Tensor):
            return (_Itself(value), 0 if value.is_inference() else value._version)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, _FUNCTIONS):
            return self._function(value)
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | enum.Enum):
            return _Itself(value)
        return (kind, self._content(value), self._attributes(value), self._methods(kind))

    def _content(self, value: Any) -> Any:
        if isinstance(value, dict):
            return tuple((self.of(name), self.of(one)) for name, one in value.items())
        if isinstance(value, _CONTAINERS):
            return tuple(self.of(one) for one in value)
        if _root(type(value)) in _OPAQUE or type(value).__module__ in _OPAQUE:
            return _Itself(value)
        if hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            return None
        try:
            return self.of(value.__reduce_ex__(4))  # of what is written in C: counters, generators
        except Unwatchable:
            raise
        except Exception as error:
            if isinstance(value, Iterator):
                raise Unwatchable from error
            return _Itself(value)

    def _attributes(self, value: Any) -> Any:
        if _root(type(value)) in _OPAQUE or type(value).__module__ in _OPAQUE:
            return None
        slots = [n for kind in type(value).__mro__ for n in _names(vars(kind).get("__slots__", ()))]
        found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        found |= getattr(value, "__dict__", {})
        for name in getattr(type(value), DERIVED, ()):
            found.pop(name, None)
        return tuple((name, self.of(one)) for name, one in found.items()) or None

    def _array(self, value: np.ndarray) -> Any:
        if value.nbytes > _BYTES:
            raise Unwatchable
        numbers = self.of(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return (value.shape, str(value.dtype), numbers)

    def _module(self, module: nn.Module) -> Any:
        """Attributes and constants; what is trained, and running statistics, come from outside."""
        rest = vars(module)
        constants = [
            (name, self.of(value))
            for name, value in (*rest["_parameters"].items(), *rest["_buffers"].items())
            if value is not None and not value.requires_grad and name not in STATISTICS
        ]
        attributes = [
            (name, value if type(value) in _SIMPLE else self.of(value))
            for name, value in rest.items()
            if name not in _OF_MODULES and not (isinstance(value, dict) and not value)
        ]
        children = [(name, self.of(child)) for name, child in rest["_modules"].items()]
        return (type(module), constants, attributes, children, self._methods(type(module)))

    def _methods(self, kind: type) -> Any:
        """What the methods of a class read, and what stands in the class."""
        found = []
        if _foreign(kind):
            return None
        for each in kind.__mro__:
            if _foreign(each) or id(each) in self._seen:
                continue
            self._seen[id(each)] = len(self._seen)
            for name, value in vars(each).items():
                if isinstance(value, property):
                    found += [self.of(part) for part in (value.fget,) if part is not None]
                elif isinstance(value, _FUNCTIONS):
                    found.append(self.of(value))
                elif not name.startswith("__") and isinstance(value, (*_PLAIN, *_CONTAINERS, dict)):
                    found.append((name, self.of(value)))
        return found or None

    def _function(self, function: Any) -> Any:
        if isinstance(function, functools.partial):
            parts = (function.func, function.args, function.keywords)
            return tuple(self.of(part) for part in parts)
        if not isinstance(function, types.FunctionType):
            owner = getattr(function, "__self__", None)
            return (self.of(function.__func__), self.of(owner))
        if _foreign(function):
            return _Itself(function)
        names, around = _read(function.__code__), function.__globals__
        return (
            _Itself(function.__code__),
            [(name, self._global(around[name], names)) for name in names if name in around],
            [self.of(_inside(cell)) for cell in function.__closure__ or ()],
            self.of(function.__defaults__),
            self.of(function.__kwdefaults__),
            self.of(function.__dict__) if function.__dict__ else None,
        )

    def _global(self, value: Any, names: tuple[str, ...]) -> Any:
        """Of classes and modules only what the function names."""
        if not isinstance(value, type | types.ModuleType) or _foreign(value):
            return self.of(value)
        found = vars(value)
        plain = (*_PLAIN, *_CONTAINERS, *_FUNCTIONS, dict)
        return [(n, self.of(found[n])) for n in names if isinstance(found.get(n, self), plain)]


@functools.cache
def _read(code: types.CodeType) -> tuple[str, ...]:
    """Names that a function reads, and those of functions within it."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    names = [*code.co_names, *(name for part in inner for name in _read(part))]
    return tuple(dict.fromkeys(names))


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _module_name(thing: Any) -> str:
    name = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
    return name if isinstance(name, str) else ""


def _root(thing: Any) -> str:
    return _module_name(thing).partition(".")[0]


def _foreign(thing: Any) -> bool:
    """Whether it belongs to what nobody changes: Python, torch, this core."""
    name = _module_name(thing)
    return name.partition(".")[0] in _OTHERS or name.startswith("coterie.core.")


def attributes(module: nn.Module) -> dict[str, Any]:
    """Readings of the attributes of a module and its parts, one by one, to name what changed."""
    found: dict[str, Any] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OF_MODULES:
                found[f"{path}.{name}".removeprefix(".")] = _Walk().of(value)
    return found


# What a module computes with and nobody trains: it must be the same wherever the module stands.
#
# Frozen parameters, buffers that are no running statistics, and plain attributes: tensors, arrays,
# numbers, text, and collections of these. They do not travel, so server and clients each have their
# own, and a random layer that is drawn twice is two layers.

_AS_SHOWN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
_OF_TORCH = frozenset(vars(nn.Module())) | {"training"}


def constants_of(module: nn.Module) -> dict[str, str]:
    """Give a digest of each constant of a module, by name.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> sorted(constants_of(layer.requires_grad_(False)))
        ['bias', 'in_features', 'out_features', 'weight']
    """
    statistics = set(statistics_of(module))
    values: dict[str, Any] = {
        name: value for name, value in module.named_parameters() if not value.requires_grad
    }
    values |= {name: value for name, value in module.named_buffers() if name not in statistics}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OF_TORCH:
                values[f"{prefix}.{name}" if prefix else name] = value
    found = ((name, _plain(value)) for name, value in values.items())
    return {name: digest(value) for name, value in found if value is not _FOREIGN}


_FOREIGN = object()
"""In place of what is no constant: functions, modules, generators and other objects."""


def _plain(value: Any) -> Any:
    """Write a constant as a tree that has a digest."""
    if isinstance(value, nn.Parameter) and value.requires_grad:  # trained, however it is named
        return _FOREIGN
    if isinstance(value, Tensor):
        return _FOREIGN if value.is_meta else value
    if isinstance(value, np.random.Generator | random.Random | torch.Generator):
        return _FOREIGN
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.dtype.kind in "USMmV":
            return [str(value.dtype), list(value.shape), repr(value.tolist())]
        return torch.from_numpy(np.ascontiguousarray(value).view(np.uint8).reshape(-1).copy())
    if isinstance(value, _AS_SHOWN):
        return repr(value) if isinstance(value, complex) else value
    if isinstance(value, Mapping):
        return _together({str(key): each for key, each in value.items()})
    if isinstance(value, list | tuple):
        return _together({str(place): each for place, each in enumerate(value)})
    if isinstance(value, set | frozenset) and all(isinstance(each, _AS_SHOWN) for each in value):
        return sorted(map(repr, value))
    return _FOREIGN


def _together(children: Mapping[str, Any]) -> Any:
    """The constants among some values; foreign if none is one."""
    found = {name: plain for name, plain in _each(children) if plain is not _FOREIGN}
    return found if found or not children else _FOREIGN


def _each(children: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, _plain(value)) for name, value in children.items())
