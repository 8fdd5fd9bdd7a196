"""The client's place-holder in a generation cache for the layers that run elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from coterie.core.errors import UserError


class RemoteCacheLayer(DynamicLayer):
    """Note what is done to a cache, so that the server can do it to its own.

    Keys and values of the middle stay on the server. Beam search reorders the sequences of a cache
    between two steps, and assisted generation shortens it: that is told with the next step.

    Args:
        number: of the cache, unique on the client's channel.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.length = 0
        self.order: Tensor | None = None  # (B,) places in the batch as the server has it
        self._batch = 0

    def grow(self, batch: int, tokens: int) -> None:
        """Note that the server has ``tokens`` more of ``batch`` sequences."""
        self.length += tokens
        self.order = None
        self._batch = batch

    def get_seq_length(self) -> int:
        """Tokens of every sequence in the server's cache."""
        return self.length

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Refuse keys and values.

        Raises:
            UserError: always; no layer of the client has this place.
        """
        raise UserError(
            "two layers share a place in the cache: cut the backbone with coterie's cut"
        )

    def reset(self) -> None:
        """Forget the cached tokens."""
        self.length = 0
        self.order = None

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; the number is negative or 0."""
        self.length = max(0, self.length - abs(tokens_to_remove))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let every sequence continue another one."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        self.batch_select_indices(torch.arange(self._batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences, in this order."""
        if self.length:
            chosen = indices.to("cpu", torch.int32)
            self.order = chosen if self.order is None else self.order[chosen.long()]
