"""`tiny-text`: a small causal language model over titles that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.causal_text import CausalText
from coterie.llm.backbones.prompts import compact_template, plain
from coterie.llm.backbones.tokenizer import END, train_tokenizer
from coterie.llm.settings.backbone import GenerationSettings


@dataclass(frozen=True)
class TinyTextSettings:
    """Size of a small causal language model."""

    layers: int = 2
    """Decoder layers."""
    hidden: int = 64
    """Width h."""
    heads: int = 4
    """Attention heads."""
    vocabulary: int = 2000
    """Most tokens of the tokenizer."""
    context: int = 192
    """Most tokens that the model reads."""


def tiny_text(
    titles: Sequence[str],
    settings: TinyTextSettings,
    key: Key,
    generation: GenerationSettings,
) -> CausalText:
    """Build an untrained small Llama and its tokenizer; train it by `pretraining.pretrain`.

    Args:
        titles: of all items.
        settings: size.
        key: of the first parameters.
        generation: how titles are written.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer([plain(title) for title in titles], settings.vocabulary)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=4 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=settings.context,
        initializer_range=settings.hidden**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with key.fold("tiny-text").torch_rng():
        model = on_host(lambda: LlamaForCausalLM(config))
    return CausalText(model, tokenizer, titles, compact_template(END), generation, settings.context)
