"""The way from a client to the middle layers, and the count of what crosses it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Protocol

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.llm.split.context import Context, finite

WIRE_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Traffic:
    """Bytes that crossed, by direction and field.

    Example:
        >>> traffic = Traffic()
        >>> traffic.add("up", "masks", torch.ones(2, 3, dtype=torch.bool))
        >>> traffic.drain()
        [('up', 'masks', 1, 6)]
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, direction: Literal["up", "down"], field: str, *tensors: Tensor) -> None:
        """Count one message; "up" is from the client."""
        if tensors:
            self.count(direction, field, sum(map(tree.nbytes, tensors)))

    def count(self, direction: Literal["up", "down"], field: str, size: int) -> None:
        """Count one message of so many bytes."""
        messages, before = self._totals.get((direction, field), (0, 0))
        self._totals[direction, field] = messages + 1, before + size

    def drain(self) -> list[tuple[str, str, int, int]]:
        """Give direction, field, messages and bytes since the last time, and count from 0."""
        rows = [(way, field, *total) for (way, field), total in sorted(self._totals.items())]
        self._totals.clear()
        return rows


class Served(Protocol):
    """The middle as clients see it, here or elsewhere; see `coterie.llm.split.middle.Middle`."""

    def open(self, client: int, *, training: bool, key: Key | None = None) -> str:
        """Begin a session and name it."""

    def forward(self, session: str, hidden: Tensor, context: Context) -> tuple[Tensor, int]:
        """Run the layers on ``(B, T, h)``; number the call."""

    def backward(self, session: str, call: int, grad: Tensor) -> Tensor | None:
        """Take the gradient of a call's result, give that of its input."""

    def step(self, session: str) -> None:
        """Make one optimizer step."""

    def close(self, session: str, *, keep: bool = True) -> None:
        """End a session."""


class Channel:
    """One session at a time with the middle.

    Args:
        middle: in this process, or what stands for one elsewhere.
        wire: number format of what crosses; None for that of the model. "bfloat16" halves float32
            and rounds it.

    Attributes:
        middle: as given.
        traffic: what crossed.
    """

    def __init__(self, middle: Served, wire: str | None = None) -> None:
        if wire is not None and wire not in WIRE_TYPES:
            raise UserError(f"wire '{wire}' is unknown: known: {', '.join(WIRE_TYPES)}")
        self.middle, self.traffic = middle, Traffic()
        self._wire = None if wire is None else WIRE_TYPES[wire]
        self._caches = itertools.count()
        self._session: str | None = None

    def open(self, client: int, *, training: bool, key: Key | None = None) -> None:
        """Begin a session with a client's adapter; one that is open is dropped.

        A session that trains starts from the part in use; ``key`` is that of dropout.

        Raises:
            UserError: refused.
        """
        if self._session is not None:
            with suppress(UserError):  # it may have expired
                self.close(keep=False)
        self._session = self.middle.open(client, training=training, key=key)

    def forward(self, hidden: Tensor, context: Context) -> tuple[Tensor, int]:
        """Run the middle on ``(B, T, h)``, without graph.

        Returns:
            Hidden states ``(B, T, h)`` after the middle, and the number of the call.

        Raises:
            Diverged: what goes in, and is not sent then, or what comes out is not finite.
        """
        sent = finite("input", hidden if self._wire is None else hidden.to(self._wire))
        self.traffic.add("up", "activations", sent)
        self.traffic.add("up", "masks", *context.tensors())
        out, call = self.middle.forward(self._current(), sent, context)
        self.traffic.add("down", "activations", out)
        return finite("output", out.to(hidden.device, hidden.dtype)), call

    def backward(self, call: int, grad: Tensor) -> Tensor | None:
        """Send the gradient of a call's result; get that of its input, if it was wanted.

        Raises:
            Diverged: one of the gradients is not finite; the first is not sent then.
        """
        sent = finite("gradient", grad if self._wire is None else grad.to(self._wire))
        self.traffic.add("up", "gradients", sent)
        back = self.middle.backward(self._current(), call, sent)
        if back is None:
            return None
        self.traffic.add("down", "gradients", back)
        return finite("gradient", back.to(grad.device, grad.dtype))

    def step(self) -> None:
        """Let the middle make one optimizer step with the gradients since the last one."""
        self.middle.step(self._current())

    def close(self, *, keep: bool = True) -> None:
        """End the session; what was trained waits to be mixed, or is lost.

        Raises:
            Diverged: what was trained is not finite, and is lost.
        """
        session, self._session = self._current(), None
        self.middle.close(session, keep=keep)

    def new_cache(self) -> int:
        """Number a new cache for generation."""
        return next(self._caches)

    @contextmanager
    def session(self, client: int, *, training: bool, key: Key | None = None) -> Iterator[None]:
        """Open a session for a block; an exception drops what was trained in it."""
        self.open(client, training=training, key=key)
        try:
            yield
        except BaseException:
            # The first error is the one to tell; the server drops the session by itself, too.
            with suppress(UserError):
                self.close(keep=False)
            raise
        self.close()

    def _current(self) -> str:
        if self._session is None:
            raise UserError("no session is open: open one for the client first")
        return self._session
