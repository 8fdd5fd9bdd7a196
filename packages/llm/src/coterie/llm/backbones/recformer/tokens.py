"""Items as "key value" tokens, and histories as rows of items, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.tensors.ragged import Ragged
from coterie.llm.backbones.prompts import plain
from coterie.llm.data.catalogue import Catalogue

START_TYPE, KEY_TYPE, VALUE_TYPE, PAD_TYPE = range(4)
TOKEN_TYPES = 4
Attributes = tuple[tuple[str, str], ...]
"""Names and values of an item's attributes, in RecFormer's order: title, brand, category."""


@dataclass(frozen=True)
class Limits:
    """How much text is read; the defaults are those of the public fine-tuning.

    Attributes:
        attributes: most attributes of an item.
        attribute_tokens: most tokens of an attribute, its name included.
        items: most items of a history.
        tokens: most tokens of a history, start token included.
    """

    attributes: int = 3
    attribute_tokens: int = 32
    items: int = 50
    tokens: int = 1024


@dataclass(frozen=True)
class Encoded:
    """B sequences of T tokens, padded on the right; each ``(B, T)`` int64.

    Attributes:
        token: numbers in the vocabulary.
        item: 0 at the start token, then the place of the item, 1 = newest.
        kind: `START_TYPE`, `KEY_TYPE`, `VALUE_TYPE` or `PAD_TYPE`.
        mask: 1 at tokens, 0 at padding.
    """

    token: Tensor
    item: Tensor
    kind: Tensor
    mask: Tensor


class ItemTokens:
    """Writes histories as sequences of tokens.

    Args:
        attributes: of all items.
        tokenizer: a Hugging Face tokenizer with a start and a padding token.
        limits: how much is read.

    Attributes:
        cut: number of histories so far that lost their oldest items or tokens to the limits.
    """

    def __init__(self, attributes: Sequence[Attributes], tokenizer: Any, limits: Limits) -> None:
        self.limits, self.cut, self.tokenizer = limits, 0, tokenizer
        self.start: int = tokenizer.bos_token_id
        self.pad: int = tokenizer.pad_token_id
        self.items = [self._flatten(item, tokenizer) for item in attributes]

    def encode(self, history: Ragged, multiple: int = 1) -> Encoded:
        """Write histories; the number of tokens is padded to a multiple of ``multiple``."""
        rows = [self._row(items) for items in history.tolists()]
        longest = max((len(row) for row in rows), default=1)
        width = -(-longest // multiple) * multiple
        filler = (self.pad, 0, PAD_TYPE, 0)
        padded = [row + [filler] * (width - len(row)) for row in rows]
        table = torch.tensor(padded, dtype=torch.int64).view(len(rows), width, 4)
        return Encoded(*table.unbind(2))

    def _row(self, items: list[int]) -> list[tuple[int, int, int, int]]:
        newest = items[::-1][: self.limits.items]
        row = [(self.start, 0, START_TYPE, 1)]
        for place, item in enumerate(newest, start=1):
            row += [(token, place, kind, 1) for token, kind in self.items[item]]
        self.cut += len(newest) < len(items) or len(row) > self.limits.tokens
        return row[: self.limits.tokens]

    def _flatten(self, item: Attributes, tokenizer: Any) -> tuple[tuple[int, int], ...]:
        """Tokens of an item with their kinds: every attribute's name, then its value."""
        flat: list[tuple[int, int]] = []
        for name, value in item[: self.limits.attributes]:
            tokens = [(token, KEY_TYPE) for token in _ids(tokenizer, name)]
            tokens += [(token, VALUE_TYPE) for token in _ids(tokenizer, value)]
            flat += tokens[: self.limits.attribute_tokens]
        return tuple(flat)


def item_attributes(items: Catalogue) -> list[Attributes]:
    """Read the attributes of every item; those without a value are left out.

    Raises:
        UserError: the source has no titles.
    """
    titles, n = items.require_titles(), items.n_items
    categories = [" ".join(names) for names in items.genres or [[]] * n]
    rows = zip(titles, items.brands or [""] * n, categories, strict=True)
    named = (zip(("title", "brand", "category"), row, strict=True) for row in rows)
    return [tuple((n, plain(v)) for n, v in row if v and plain(v)) for row in named]


def texts(attributes: Iterable[Attributes]) -> list[str]:
    """List all names and values, to train a tokenizer on."""
    return [text for item in attributes for pair in item for text in pair]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
