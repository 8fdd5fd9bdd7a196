"""Transformer layers that run apart from the rest of their model: the middle, on the server."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.masking_utils import create_causal_mask

from coterie.core.wire.codec import ProtocolError
from coterie.llm.backbones.base import number
from coterie.llm.split.context import GLOBAL, MASKED, Context


class Stack(nn.Module, ABC):
    """Consecutive layers of a transformer with what they need to run.

    Args:
        layers: from the input up.
        config: of the model; copied.
    """

    def __init__(self, layers: Sequence[nn.Module], config: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.config = copy.deepcopy(config)
        self.hidden: int = config.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """Of the hidden states."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Where the layers are."""
        return next(self.parameters()).device

    def check(self, hidden: Tensor, context: Context) -> None:
        """Refuse hidden states ``(B, T, h)`` or a context that cannot be run.

        Raises:
            ProtocolError: one line that says what does not fit.
        """
        if hidden.dim() != 3 or hidden.shape[2] != self.hidden or not hidden.numel():
            raise ProtocolError(
                f"hidden states are {tuple(hidden.shape)}, expected (sequences, tokens, "
                f"{self.hidden})"
            )
        context.check(*hidden.shape[:2])

    @abstractmethod
    def forward(self, hidden: Tensor, context: Context, cache: Any = None) -> Tensor:
        """Run the layers on ``(B, T, h)``; the cache, of tokens before, is extended in place."""

    def new_cache(self) -> Any:
        """Make an empty cache for generation.

        Raises:
            ProtocolError: these layers do not generate.
        """
        raise ProtocolError("an encoder has no cache")


class DecoderStack(Stack):
    """Layers as Llama has them: causal self-attention with rotary positions.

    Args:
        layers: from the input up; their places in the cache are numbered anew.
        config: of the model.
        rotary: makes cosines and sines of positions; copied.
    """

    def __init__(self, layers: Sequence[nn.Module], config: Any, rotary: nn.Module) -> None:
        super().__init__(layers, config)
        self.rotary = copy.deepcopy(rotary)
        number(layers)

    def check(self, hidden: Tensor, context: Context) -> None:
        """Refuse what cannot be run; see `Stack.check`."""
        super().check(hidden, context)
        if context.mask is not None and context.mask.dtype != torch.bool:
            raise ProtocolError("the mask of a decoder must be bool")

    def forward(self, hidden: Tensor, context: Context, cache: Any = None) -> Tensor:
        """Run the layers on hidden states ``(B, T, h)``; see `Stack.forward`."""
        positions = context.positions
        if positions is None:
            end = context.past + hidden.shape[1]
            positions = torch.arange(context.past, end, device=hidden.device)[None]
        positions = positions.long()
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=context.mask,
            past_key_values=cache,
        )
        rotary = self.rotary(hidden, position_ids=positions)
        for layer in self.layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_embeddings=rotary,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return hidden

    def new_cache(self) -> Any:
        """Make an empty cache for generation."""
        return DynamicCache()


class LongformerStack(Stack):
    """Layers as Longformer has them: a sliding window, and global attention at some tokens."""

    def check(self, hidden: Tensor, context: Context) -> None:
        """Refuse what cannot be run; see `Stack.check`."""
        super().check(hidden, context)
        if context.mask is None or context.mask.dtype != torch.int8:
            raise ProtocolError("Longformer needs an int8 mask")
        if not bool(((context.mask >= MASKED) & (context.mask <= GLOBAL)).all()):
            raise ProtocolError("the mask must hold 0 (masked), 1 (local) and 2 (global)")
        for layer in self.layers:
            window = 2 * layer.get_submodule("attention.self").one_sided_attn_window_size  # type: ignore[operator]
            if hidden.shape[1] % window:
                raise ProtocolError(
                    f"{hidden.shape[1]} tokens are no multiple of the attention window {window}"
                )

    def forward(self, hidden: Tensor, context: Context, cache: Any = None) -> Tensor:
        """Run the layers on hidden states ``(B, T, h)``; see `Stack.forward`."""
        if context.mask is None:
            raise ProtocolError("Longformer needs an int8 mask")
        masked, everywhere = context.mask == MASKED, context.mask == GLOBAL
        bounds = torch.finfo(hidden.dtype)
        extended = hidden.new_zeros(context.mask.shape)
        extended = extended.masked_fill(masked, bounds.min).masked_fill(everywhere, bounds.max)
        is_global = bool(everywhere.any())
        for layer in self.layers:
            hidden = layer(
                hidden,
                attention_mask=extended,
                is_index_masked=masked,
                is_index_global_attn=everywhere,
                is_global_attn=is_global,
                output_attentions=False,
            )[0]
        return hidden
