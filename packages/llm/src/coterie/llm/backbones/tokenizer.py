"""A tokenizer trained on the texts of the items, for backbones that need no download."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer, a `PreTrainedTokenizerFast` that puts ``<s>`` ahead.

    It depends on the texts alone. Of the ``vocabulary`` 256 bytes and 4 special tokens are there.
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
