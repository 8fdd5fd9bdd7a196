"""`tiny-text`: a small causal language model over titles that needs no download."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.seeding import Key
from coterie.llm.backbones.causal_text import CausalText
from coterie.llm.backbones.prompts import compact_template, plain
from coterie.llm.backbones.text_settings import GenerationSettings

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


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


TINY_GENERATION = GenerationSettings(beams=10, candidates=10, max_new_tokens=32, length_penalty=0.0)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer; depends on the texts alone.

    Args:
        texts: what it has to write well.
        vocabulary: most tokens; the 256 bytes and 4 special tokens are always there.

    Returns:
        A `PreTrainedTokenizerFast` that puts ``<s>`` ahead of a text.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # Words end at blanks only, so that " (1996)" is one token and not three.
    words = pre_tokenizers.Split(Regex(r" ?\S+|\s+"), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, START, END, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, tokenizer.token_to_id(START))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def tiny_text(
    titles: Sequence[str],
    settings: TinyTextSettings,
    key: Key,
    generation: GenerationSettings = TINY_GENERATION,
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
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with key.fold("tiny-text").torch_rng():
        model = LlamaForCausalLM(config)
    return CausalText(model, tokenizer, titles, compact_template(END), generation, settings.context)
