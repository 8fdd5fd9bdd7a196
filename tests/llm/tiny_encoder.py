"""Tiny encoders of Hugging Face with a tokenizer of words, made here and written to a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from coterie.core.tensors.keys import Key

TITLES = [
    "red sea",
    "old red ox",
    "blue",
    "blue sky over the sea",
    "",
    "red sea",
    "ox",
    "the old sky",
    "red red red",
    "over",
    "the blue ox over the old red sea",
    "sky",
]
WORDS = sorted({word for title in TITLES for word in title.split()})
SPECIAL = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
SHAPE = {
    "vocab_size": len(WORDS) + len(SPECIAL),
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "initializer_range": 0.5,  # else all texts look alike
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
KINDS = {
    "bert": (BertModel, BertConfig),
    "roberta": (RobertaModel, RobertaConfig),
    "mpnet": (MPNetModel, MPNetConfig),
}


def tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    numbers = {word: n for n, word in enumerate([*SPECIAL, *words])}
    found = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "pad", "sep", "unk")}
    return PreTrainedTokenizerFast(tokenizer_object=found, **names)


def network(kind: str = "bert", seed: int = 0, **changed: Any) -> Any:
    model, config = KINDS[kind]
    with Key.from_seed(seed).torch_rng():
        return model(config(**SHAPE | changed)).eval()


def folder(path: Path, kind: str = "bert", words: Sequence[str] = WORDS, **changed: Any) -> Path:
    size = len(words) + len(SPECIAL)
    network(kind, vocab_size=size, **changed).save_pretrained(str(path))
    tokenizer(words).save_pretrained(str(path))
    return path


def rows() -> list[tuple[int, ...]]:
    """The titles as tokens."""
    return [tuple(row) for row in tokenizer()(TITLES)["input_ids"]]


def states(model: Any, row: tuple[int, ...]) -> torch.Tensor:
    """What a whole model makes of one title, ``(T, h)``."""
    return model(input_ids=torch.tensor([row])).last_hidden_state[0]
