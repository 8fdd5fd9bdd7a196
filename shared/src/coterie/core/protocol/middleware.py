"""Middleware: what an upload passes between the client's step and the transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coterie.core.tensors.keys import Key


class Middleware(Protocol):
    """A change made on the client's side to its stacked upload before it leaves."""

    def __call__(self, up: Any, key: Key) -> Any:
        """Return the changed upload; ``key`` holds the clients' own keys, ``(C,)``."""
        ...


@dataclass(frozen=True)
class OfSteps:
    """A layer for the uploads of some steps alone.

    Attributes:
        layer: what they pass.
        steps: names of the steps.
    """

    layer: Middleware
    steps: tuple[str, ...]

    def __call__(self, up: Any, key: Key) -> Any:
        """Return the upload, of one of the steps, as the layer changes it."""
        return self.layer(up, key)


def layers_of(step: str, layers: Sequence[Middleware]) -> list[Middleware]:
    """What the uploads of a step pass, in order.

    Example:
        >>> def halve(up, key):
        ...     return up / 2
        >>> len(layers_of("fit", [halve, OfSteps(halve, ("send",))]))
        1
    """
    return [one for one in layers if not isinstance(one, OfSteps) or step in one.steps]
