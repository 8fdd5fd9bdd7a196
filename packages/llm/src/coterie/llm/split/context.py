"""What crosses between the parts of a split model beside hidden states: where tokens are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.errors import UserError
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
