"""Tiny random backbones with LoRA in every layer, as the split tests need them."""

from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LongformerConfig, LongformerModel

from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.examples import Examples
from coterie.llm.split.middle import Middle
from coterie.llm.split.part import Part

VOCABULARY = 37


class Tiny(Backbone):
    """What both kinds share: no recommending, only the network."""

    network: Any

    def network_loss(self, examples: Examples) -> Tensor:
        raise NotImplementedError

    def network_scores(self, history: Ragged) -> Tensor:
        raise NotImplementedError


class TinyLlama(Tiny):
    def __init__(
        self, n_layers: int, hidden: int = 32, attention: str = "sdpa", dropout: float = 0.0
    ) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=n_layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        config._attn_implementation = attention
        with Key.from_seed(5).torch_rng():
            self.network = self.model = LlamaForCausalLM(config)
            lora(self.network, ["q_proj", "v_proj"], dropout)
        self.hidden = hidden

    def value(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Loss of a batch."""
        labels = tokens.masked_fill(mask == 0, -100)
        out = self.network(input_ids=tokens, attention_mask=mask, labels=labels, use_cache=False)
        return out.loss


class TinyLongformer(Tiny):
    place = "encoder.layer"

    def __init__(self, n_layers: int, hidden: int = 32) -> None:
        super().__init__()
        config = LongformerConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=n_layers,
            num_attention_heads=4,
            max_position_embeddings=128,
            attention_window=8,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=1,
        )
        with Key.from_seed(6).torch_rng():
            self.network = self.model = LongformerModel(config)
            self.head = nn.Linear(hidden, VOCABULARY).requires_grad_(False)
            lora(self.network, ["query", "value", "query_global", "value_global"], 0.0)
        self.hidden = hidden

    def value(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Loss of a batch, the first token attending everywhere."""
        everywhere = torch.zeros_like(mask)
        everywhere[:, 0] = 1
        out = self.network(input_ids=tokens, attention_mask=mask, global_attention_mask=everywhere)
        logits = self.head(out.last_hidden_state)
        labels = tokens.masked_fill(mask == 0, -100)
        return nn.functional.cross_entropy(logits.transpose(1, 2), labels)


def lora(network: nn.Module, targets: list[str], dropout: float) -> None:
    """Put LoRA into a frozen network, with no part of it at zero."""
    network.requires_grad_(False)
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules=targets)
    inject_adapter_in_model(config, network)
    for name, parameter in network.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)


def batch(
    size: int = 3, length: int = 11, side: str = "left", seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Token numbers ``(size, length)`` and their mask; the sequences are of different lengths."""
    key = Key.from_seed(seed)
    tokens = key.integers(VOCABULARY - 3, torch.arange(size * length)).reshape(size, length) + 3
    real = torch.arange(length)[None] < length - 2 * torch.arange(size)[:, None]
    mask = (real.flip(1) if side == "left" else real).long()
    return tokens.masked_fill(mask == 0, 1), mask


def gradients(network: nn.Module) -> dict[str, Tensor]:
    """Gradients by name of parameter."""
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}


def use_start(middle: Middle, clients: int = 6, *, optimizer: bool = False) -> Part:
    """Let clients start from what all start from, as before the first round."""
    part = middle.start(clients, optimizer=optimizer)
    middle.use(part)
    return part
