"""How many tokens pass from layer to layer, which is what a split model sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.tensors.ragged import Ragged
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.causal_text import CausalText
from coterie.llm.backbones.prompts import PromptTokens, bigrec_template
from coterie.llm.data.examples import Examples, Queries
from coterie.llm.quality import measure_users
from coterie.llm.settings.backbone import GenerationSettings

_CONTEXT, _ANSWER = 512, 128  # BIGRec's
_CHARACTERS = 4  # of English text in a token, by and large
_SAMPLE = 512  # examples or texts that stand for all


@dataclass(frozen=True)
class CatalogueTokens:
    """Tokens of the texts of all items, which pass forward only.

    Attributes:
        training: embedded before a client trains, each time.
        validation: embedded before a client is validated or tested, each time.
        once: embedded when items are first scored, and kept.
    """

    training: int = 0
    validation: int = 0
    once: int = 0


class _Counted(Exception):
    """Raised in place of the layers: nothing behind them need run."""


class _Counter(nn.Module):
    """Stands for all layers of a backbone in a ``with`` block, and counts tokens that reach it.

    Args:
        backbone: as before afterwards.
        ends: whether a pass, and the block, end there; otherwise it goes on without layers.
    """

    def __init__(self, backbone: Backbone, *, ends: bool = True) -> None:
        super().__init__()
        self.tokens = 0
        # In a tuple, or the backbone would be a part of what stands in it.
        self._of, self._ends = (backbone, list(backbone.layers)), ends

    def __enter__(self) -> _Counter:
        self._of[0].use_layers([self])
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        self._of[0].use_layers(self._of[1])
        return kind is _Counted

    def forward(self, hidden_states: Tensor, *given: Any, **named: Any) -> Tensor | tuple[Tensor]:
        """Count ``(B, T, h)``."""
        self.tokens += hidden_states.shape[0] * hidden_states.shape[1]
        if self._ends:
            raise _Counted
        return hidden_states if hasattr(self._of[1][0], "self_attn") else (hidden_states,)


@torch.no_grad()
def catalogue_tokens(backbone: Backbone) -> CatalogueTokens:
    """Count the tokens by which a backbone embeds all items, padding included.

    What it keeps then are embeddings of a network without layers: prepare it anew.
    """
    nothing = Ragged.from_lists([])
    with _Counter(backbone, ends=False) as counter:
        backbone.prepare()
        training = counter.tokens
        backbone.scores(nothing)
        first = counter.tokens
        backbone.prepare()
        backbone.scores(nothing)
        again = counter.tokens - first
    return CatalogueTokens(training, again, first - again)


@torch.no_grad()
def training_tokens(backbone: Backbone, examples: Examples, batch_size: int) -> int:
    """Count the tokens of one epoch, padding included; the examples run through no layer.

    What a RecFormer reads to embed its items is counted by `catalogue_tokens`.
    """
    if len(examples):
        backbone.prepare()
    counter = _Counter(backbone)
    for index in torch.arange(len(examples)).split(batch_size):
        with counter:
            backbone.loss(examples.take(index))
    return counter.tokens


def validation_tokens(backbone: Backbone, queries: Queries) -> float:
    """Count the tokens of a client's users when all are recommended to, without the items' texts.

    Where titles are written, it is as many as can be, see `generated_tokens`. The backbone is
    prepared.
    """
    found = 0.0

    def score(part: Queries) -> Tensor:
        nonlocal found
        found += recommending_tokens(backbone, part.history)
        return torch.zeros(len(part), backbone.n_items)

    measure_users(score, queries)
    return found


@torch.no_grad()
def recommending_tokens(backbone: Backbone, history: Ragged) -> float:
    """Count the tokens by which a prepared backbone scores all items, without the items' texts."""
    if isinstance(backbone, CausalText):
        rows, batch = backbone.text.prompts(history), backbone.generation.batch
        parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        sizes = [len(part) * max(map(len, part)) for part in parts]  # padded
        return generated_tokens(sum(sizes), len(rows), backbone.generation)
    with _Counter(backbone) as counter:
        backbone.scores(history)
    return counter.tokens


def generated_tokens(prompts: float, queries: float, how: GenerationSettings) -> float:
    """Count the tokens of writing titles to the full length and embedding what was written.

    Every beam reads the prompt, and then its own tokens but the last. A text that is no title is
    embedded by itself, in as many tokens, start token included. How soon texts end depends on the
    model and cannot be known before. Of so many queries the prompts have ``prompts`` tokens.

    Example:
        >>> generated_tokens(100, 1, GenerationSettings(beams=4, max_new_tokens=6))
        426
    """
    written = how.beams * (how.max_new_tokens - 1)
    embedded = how.candidates * how.max_new_tokens  # without the end token, with that of the start
    return how.beams * prompts + queries * (written + embedded)


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
