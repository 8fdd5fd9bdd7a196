"""The way from a client to the middle layers: what crosses it, and the count of that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import ProtocolError

MASKED, LOCAL, GLOBAL = 0, 1, 2


@dataclass(frozen=True)
class Context:
    """Where tokens are in a batch of B sequences of T tokens, and what is asked of the middle.

    Attributes:
        mask: for decoders ``(B, past + T)`` bool, False at padding; for Longformer ``(B, T)`` int8,
            0 masked, 1 local, 2 global attention. None where nothing is masked.
        positions: ``(B or 1, T)`` int32; None where they count on from ``past``.
        past: tokens of every sequence that the middle has in its cache.
        cache: number of the cache, counted up by the client; None without cache.
        order: ``(B,)`` int32, which sequence of the cached batch each one continues (beam search);
            None where they are the same.
        adapted: whether LoRA is on; off, the frozen model runs.
        dropout: whether dropout is on.
        gradient: whether a gradient will come back, so that the graph must be kept.
        input_gradient: whether the gradient of the hidden states is then wanted.
    """

    mask: Tensor | None = None
    positions: Tensor | None = None
    past: int = 0
    cache: int | None = None
    order: Tensor | None = None
    adapted: bool = True
    dropout: bool = False
    gradient: bool = False
    input_gradient: bool = False

    def tensors(self) -> list[Tensor]:
        """Give those that are there."""
        return [t for t in (self.mask, self.positions, self.order) if t is not None]

    def check(self, batch: int, length: int) -> None:
        """Compare with ``batch`` sequences of ``length`` tokens.

        Raises:
            ProtocolError: a shape, a dtype or a number does not fit.
        """
        if self.past < 0 or (self.past and self.cache is None):
            raise ProtocolError(f"{self.past} past tokens without a cache")
        if self.cache is not None and self.gradient:
            raise ProtocolError("a cache is for generation, without gradients")
        if self.gradient and not self.adapted:
            raise ProtocolError("the frozen model runs without gradients")
        if self.mask is not None:
            _expect("mask", self.mask, (torch.bool, torch.int8), (batch, self.past + length))
        if self.positions is not None:
            rows = batch if self.positions.shape[:1] == (batch,) else 1
            _expect("positions", self.positions, (torch.int32,), (rows, length))
        if self.order is not None:
            _expect("order", self.order, (torch.int32,), (batch,))


class Diverged(UserError):
    """A client's numbers are not finite any more, be it in its own layers or in the server's.

    An organisation that trains or measures answers it as a whole model would, with an upload that
    the guard refuses; everywhere else it is one line.
    """


def finite(what: str, tensor: Tensor) -> Tensor:
    """Give a tensor back.

    Raises:
        Diverged: it has a number that is not finite.
    """
    if not bool(torch.isfinite(tensor).all()):
        raise Diverged(f"{what} of a split model is not finite any more: lower the learning rate")
    return tensor


def _expect(
    name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]
) -> None:
    if tensor.dtype not in dtypes or tensor.shape != shape:
        raise ProtocolError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected {dtypes[0]} {shape}"
        )


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


@dataclass(frozen=True)
class Opening:
    """A session that has begun.

    Attributes:
        session: its name.
        part: digest of the client's part of the middle, as it is.
    """

    session: str
    part: str


class Served(Protocol):
    """The middle as clients see it, here or elsewhere; see `coterie.llm.split.middle.Middle`."""

    def open(self, client: int, *, training: bool, key: Key | None = None) -> Opening:
        """Begin a session."""

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
        elsewhere: names client and part of the newest session.
    """

    def __init__(self, middle: Served, wire: str | None = None) -> None:
        if wire is not None and wire not in WIRE_TYPES:
            raise UserError(f"wire '{wire}' is unknown: known: {', '.join(WIRE_TYPES)}")
        self.middle, self.traffic = middle, Traffic()
        self._wire = None if wire is None else WIRE_TYPES[wire]
        self._caches = itertools.count()
        self._session: str | None = None
        self.elsewhere = ""

    def open(self, client: int, *, training: bool, key: Key | None = None) -> None:
        """Begin a session with a client's adapter; one that is open is dropped.

        A session that trains starts from the part in use; ``key`` is that of dropout.

        Raises:
            UserError: refused.
        """
        if self._session is not None:
            with suppress(UserError):  # it may have expired
                self.close(keep=False)
        opened = self.middle.open(client, training=training, key=key)
        self._session, self.elsewhere = opened.session, f"{client}:{opened.part}"

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
