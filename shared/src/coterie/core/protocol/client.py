"""The client half of an algorithm. Imports neither lightning nor the server half."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from coterie.core.protocol.messages import Private, message_types
from coterie.core.tensors.keys import Key

P = TypeVar("P", bound=Private)
Step = Callable[..., Any]
Data = TypeVar("Data", bound="ClientData")


class ClientData(Protocol):
    """Local data of some clients: ``ids`` ascending, ``take`` for a part of them."""

    ids: Tensor  # (C,) int64

    def take(self: Data, index: Tensor) -> Data:
        """Data of the clients at the positions ``index``, ``(K,)`` int64."""
        ...


def step(method: Step) -> Step:
    """Mark a method of a `Client` as a step the server may ask for.

    A step is ``(self, down, mine, data, key) -> (up, mine)``. All its arguments are stacked over a
    chunk of C clients; the function must treat each row alone. The annotations are the protocol:
    they name the message types. Returning None for ``mine`` leaves the private state as it is.
    """
    method.is_step = True  # type: ignore[attr-defined]
    return method


class Client(Generic[P]):
    """The client half: its steps and what a newcomer's private state is.

    Attributes:
        max_chunk: how many clients may run stacked; 1 asks for the list form (a plain loop), None
            leaves it to the engine.
    """

    max_chunk: int | None = None

    def enrol(self, data: Any, key: Key) -> P:
        """Make the private state of newcomers from their data and keys (stacked over C)."""
        raise NotImplementedError(f"{type(self).__name__} must say how a client starts")

    def work(self, data: Any) -> Tensor | None:
        """Estimate the work of each client, ``(C,)``; equal work is put into the same chunk."""
        return None

    def footprint(self, data: Any, down: Any) -> Tensor | None:
        """Estimate the bytes that each client adds to the working memory of a step, ``(C,)``.

        Where no chunk size is set, the engine stacks as many clients as fit into its budget; None
        stacks all of them.
        """
        return None

    @classmethod
    def steps(cls) -> Iterator[tuple[str, type | None, type | None]]:
        """Yield ``(name, down type, up type)`` of every step: the whole protocol."""
        for name in dir(cls):
            member = getattr(cls, name)
            if getattr(member, "is_step", False):
                yield name, *message_types(member)
