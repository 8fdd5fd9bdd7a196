"""Middleware: what an upload passes between the client's step and the transport."""

from __future__ import annotations

from typing import Any, Protocol

from coterie.core.tensors.keys import Key


class Middleware(Protocol):
    """A change made on the client's side to its stacked upload before it leaves."""

    def __call__(self, up: Any, key: Key) -> Any:
        """Return the changed upload; ``key`` holds the clients' own keys, ``(C,)``."""
        ...
