"""The small parameters of a network end to end: an optimizer then handles few tensors, not many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from coterie.assisted.aae.network import Params

_LARGE = 1 << 16
_REST = "small ones"


@dataclass(frozen=True)
class Packing:
    """Two forms of parameters: as they are named, and with all small ones in one tensor.

    Clipping and Adam cost the same for a small tensor as for a few thousand numbers; with twenty
    of them that is a seventh of a step. Large ones stay as they are, so that nothing is copied.

    Attributes:
        shapes: of the named parameters.

    Example:
        >>> packing = Packing({"a": (2,), "b": (1, 1)})
        >>> packed = packing.pack({"a": torch.ones(2), "b": torch.zeros(1, 1)})
        >>> {name: value.tolist() for name, value in packed.items()}
        {'small ones': [1.0, 1.0, 0.0]}
        >>> packing.unpack(packed)["b"].tolist()
        [[0.0]]
    """

    shapes: dict[str, tuple[int, ...]]

    def pack(self, named: Params) -> Params:
        """Copy the small ones into one tensor."""
        packed = {name: named[name] for name in self._large}
        return packed | {_REST: torch.cat([named[name].flatten() for name in self._sizes])}

    def unpack(self, packed: Params) -> Params:
        """Name them again; nothing is copied."""
        named = {name: packed[name] for name in self._large}
        parts = zip(self._sizes, packed[_REST].split(list(self._sizes.values())), strict=True)
        return named | {name: part.view(self.shapes[name]) for name, part in parts}

    @cached_property
    def _large(self) -> list[str]:
        return [name for name, shape in self.shapes.items() if math.prod(shape) >= _LARGE]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Numbers in each small parameter."""
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        return {name: size for name, size in sizes.items() if size < _LARGE}
