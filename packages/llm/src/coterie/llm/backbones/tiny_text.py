"""`tiny-text`: a small causal language model over titles that needs no download."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.causal_text import CausalText
from coterie.llm.backbones.prompts import compact_template, plain
from coterie.llm.backbones.tokenizer import END, train_tokenizer
from coterie.llm.settings.backbone import GenerationSettings, ModelSettings


def tiny_text(
    titles: Sequence[str],
    model: ModelSettings,
    key: Key,
    generation: GenerationSettings,
) -> CausalText:
    """Build an untrained small Llama and its tokenizer; train it by `pretraining.pretrain`.

    Args:
        titles: of all items.
        model: its size.
        key: of the first parameters.
        generation: how titles are written.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer([plain(title) for title in titles], model.vocabulary)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=model.width,
        intermediate_size=4 * model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        max_position_embeddings=model.context,
        initializer_range=model.width**-0.5,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with key.fold("tiny-text").torch_rng():
        network = on_host(lambda: LlamaForCausalLM(config))
    return CausalText(network, tokenizer, titles, compact_template(END), generation, model.context)
