"""How many clients are trained side by side: as many as the cache holds, where that is faster.

A stack shares the price of torch's calls among its clients, which is most of a step of a small
model. A step of a large one is limited by memory instead, and goes through less of it alone.
Measured on two cores (`docs/performance.md`); results do not depend on it.
"""

from __future__ import annotations

from torch import nn

CACHE = 8 << 20
"""Bytes of parameters that a stack may have: what several megabytes of cache hold most of."""
_LEAST = 4
"""Fewer are faster one after the other, without what vectorising costs in every call."""


def stack_width(module: nn.Module) -> int:
    """Clients of a stack on the CPU.

    A convolution of stacked clients is one of groups, for which there is no fast kernel.

    Args:
        module: the form of the model.

    Example:
        >>> stack_width(nn.Linear(1023, 256)), stack_width(nn.Conv2d(3, 8, 3))
        (8, 1)
    """
    if any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()):
        return 1
    each = sum(value.numel() * value.element_size() for value in module.parameters())
    width = CACHE // max(each, 1)
    return width if width >= _LEAST else 1
