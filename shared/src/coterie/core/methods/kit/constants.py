"""What a module computes with and nobody trains: it must be the same wherever the module stands.

Frozen parameters, buffers that are no running statistics, and plain attributes: tensors, arrays,
numbers, text, and collections of these. They do not travel, so server and clients each have their
own, and a random layer that is drawn twice is two layers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.local_training.alone import statistics_of
from coterie.core.tensors.digest import digest

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
