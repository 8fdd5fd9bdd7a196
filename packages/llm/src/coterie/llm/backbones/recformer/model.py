"""RecFormer's network: four summed embeddings under a Longformer encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import (
    LongformerEncoder,
    LongformerPreTrainedModel,
)

from coterie.llm.backbones.recformer.tokens import TOKEN_TYPES, Encoded


class RecformerEmbeddings(nn.Module):
    """Sum of word, position, token type and item position, normalised (section 2.2.2).

    The names of the parameters are those of the public checkpoint; arguments as of the model.
    """

    def __init__(self, config: LongformerConfig, item_positions: int) -> None:
        super().__init__()
        width, pad = config.hidden_size, config.pad_token_id or 0
        self.pad = pad
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=pad)
        self.position_embeddings = nn.Embedding(
            config.max_position_embeddings, width, padding_idx=pad
        )
        self.token_type_embeddings = nn.Embedding(TOKEN_TYPES, width)
        self.item_position_embeddings = nn.Embedding(item_positions, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, batch: Encoded) -> Tensor:
        """Embed tokens, ``(B, T, h)``. Positions count from the padding number + 1."""
        position = batch.mask.cumsum(1) * batch.mask + self.pad
        total = (
            self.word_embeddings(batch.token)
            + self.position_embeddings(position)
            + self.token_type_embeddings(batch.kind)
            + self.item_position_embeddings(batch.item)
        )
        return self.dropout(self.LayerNorm(total))


class RecformerModel(LongformerPreTrainedModel):
    """A Longformer whose start token, which attends to all others, stands for the sequence.

    Args:
        config: of the Longformer; with one attention window a layer.
        item_positions: number of item positions, that of the start token included.
    """

    def __init__(self, config: LongformerConfig, item_positions: int) -> None:
        super().__init__(config)
        if isinstance(config.attention_window, int):
            config.attention_window = [config.attention_window] * config.num_hidden_layers
        self.window = max(config.attention_window)
        self.embeddings = RecformerEmbeddings(config, item_positions)
        self.encoder = LongformerEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Give the word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the word embeddings."""
        self.embeddings.word_embeddings = value

    def forward(self, batch: Encoded) -> Tensor:
        """Embed sequences, ``(B, h)``; T must be a multiple of `window`."""
        hidden = self.embeddings(batch)
        return self.encoder(hidden, attention_mask=self._mask(batch, hidden))[0][:, 0]

    @staticmethod
    def _mask(batch: Encoded, hidden: Tensor) -> Tensor:
        """What the encoder of transformers 5 takes: below 0 masked, 0 local, above 0 global."""
        bounds = torch.finfo(hidden.dtype)
        mask = hidden.new_zeros(batch.mask.shape).masked_fill(batch.mask == 0, bounds.min)
        mask[:, 0] = bounds.max
        return mask
