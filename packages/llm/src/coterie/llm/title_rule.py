"""A rule that is not trained: what has a title like those of the history, and is popular."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.client_data import FederatedData
from coterie.llm.data.examples import Queries
from coterie.llm.data.words import ItemWords
from coterie.llm.quality import measure_users
from coterie.llm.settings.backbone import Field

DECAY = 0.8
WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Of popularity, of which validation chooses one."""
_FIELDS: tuple[tuple[Field, ...], ...] = (("titles",), ("genres",), ("titles", "genres"))

Measured = list[dict[str, Tensor]]
"""What `measure_users` gives for each of the K organisations."""


@dataclass(frozen=True)
class RuleResult:
    """The rule as validation chose it.

    Attributes:
        words: which fields of the items are compared.
        weight: a, of popularity.
        valid: by organisation.
        test: the same.
    """

    words: tuple[Field, ...]
    weight: float
    valid: Measured
    test: Measured


def has_words(items: Catalogue) -> bool:
    """Whether there is anything to compare the items by."""
    return items.titles is not None or items.genres is not None


def title_rule(data: FederatedData) -> RuleResult:
    """Rank by cosine(words of the item, of the history) + a log(1 + count of the public users).

    The words are TF-IDF vectors, of a history's items the sum, each counting `DECAY` for every
    newer one. What words, and a, are those with the best validation Recall@10 of all users. Nothing
    is trained, and nothing of a client leaves it but that recall.

    Raises:
        UserError: the items have neither titles nor genres.
    """
    items = data.catalogue
    if not has_words(items):
        raise UserError(f"{items.source} has neither titles nor genres to compare items by")
    popular = torch.log1p(data.public_counts().double())
    best, found = -1.0, None
    for fields in _FIELDS:
        if any(getattr(items, field) is None for field in fields):
            continue
        words = ItemWords(items.words(fields))
        for weight in WEIGHTS:
            score = _rule(words, weight * popular)
            valid = _measure(score, data.clients.valid)
            recall = mean_recall(valid)
            if recall > best:
                best, found = recall, (fields, weight, valid, score)
    assert found is not None  # there are words, and somebody to validate on
    fields, weight, valid, score = found
    return RuleResult(fields, weight, valid, _measure(score, data.clients.test))


def mean_recall(measured: Measured) -> float:
    """Recall@10 of all users."""
    return float(torch.cat([part["recall@10"] for part in measured]).mean())


def _rule(words: ItemWords, bias: Tensor) -> Callable[[Queries], Tensor]:
    return lambda part: words.of_histories(part.history, DECAY) + bias


def _measure(score: Callable[[Queries], Tensor], queries: Sequence[Queries]) -> Measured:
    return [measure_users(score, of_one) for of_one in queries]
