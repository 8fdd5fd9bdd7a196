"""How many tokens pass from layer to layer, which is what a split model sends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.prompt_tokens import PromptTokens
from coterie.llm.backbones.prompts import bigrec_template
from coterie.llm.data.examples import Examples

_CONTEXT, _ANSWER = 512, 128  # BIGRec's
_CHARACTERS = 4  # of English text in a token, by and large
_SAMPLE = 512  # examples or texts that stand for all


class _Counted(Exception):
    """Raised at the first layer: the others need not run."""


class _Counter:
    """Adds up the tokens that reach a layer inside a ``with`` block, and ends the pass there."""

    def __init__(self, layer: nn.Module) -> None:
        self.tokens = 0
        self._layer = layer

    def __enter__(self) -> _Counter:
        self._hook = self._layer.register_forward_pre_hook(self._count, with_kwargs=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()

    def _count(self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        hidden: Tensor = given[0] if given else named["hidden_states"]
        self.tokens += hidden.shape[0] * hidden.shape[1]
        raise _Counted


@torch.no_grad()
def training_tokens(backbone: Backbone, examples: Examples, batch_size: int) -> int:
    """Count the tokens of one epoch, padding included; the examples run through no layer.

    What a RecFormer reads to embed its catalogue anew is not counted.
    """
    if len(examples):
        backbone.prepare()
    with _Counter(backbone.layers[0]) as counter:
        for index in torch.arange(len(examples)).split(batch_size):
            with suppress(_Counted):
                backbone.loss(examples.take(index))
    return counter.tokens


def prompt_tokens(examples: Examples, titles: Sequence[str], tokenizer: Any) -> float:
    """Count the tokens of a BIGRec prompt with its answer, a mean without padding.

    Args:
        examples: histories and targets; at least one.
        titles: of all items.
        tokenizer: of the model; None estimates four characters a token.
    """
    part = examples.take(torch.arange(min(len(examples), _SAMPLE)))
    template = bigrec_template()
    if tokenizer is not None:
        text = PromptTokens(template, tokenizer, titles, _CONTEXT, _ANSWER)
        rows = [*text.prompts(part.history), *text.answers(part.target)]
        return sum(map(len, rows)) / len(part)
    pairs = zip(part.history.tolists(), part.target.tolist(), strict=True)
    texts = [
        template.prompt([titles[item] for item in items]) + template.answer(titles[target])
        for items, target in pairs
    ]
    return sum(map(len, texts)) / _CHARACTERS / len(part)
