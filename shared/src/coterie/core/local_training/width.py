"""How many clients are trained side by side: as many as the cache holds, where that is faster.

A stack shares the price of torch's calls among its clients, which is most of a step of a small
model. A step of a large one is limited by memory instead, and goes through less of it alone.
Measured on two cores (`docs/performance.md`); results do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from coterie.core.local_training.deferred import LARGE, room

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
