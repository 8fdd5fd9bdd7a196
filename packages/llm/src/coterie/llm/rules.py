"""Rules without training on the same users: popularity, of all and of one's own, and titles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.methods.ranking.references import popularity
from coterie.core.metrics.ranking_report import Split
from coterie.llm.backbone_settings import Field, Whose
from coterie.llm.data.catalogue import Catalogue, ItemWords
from coterie.llm.data.client_data import FederatedData
from coterie.llm.data.examples import Queries
from coterie.llm.own_counts import STRENGTHS, own_counts
from coterie.llm.quality import measure_each, measure_users

DECAY = 0.8
WEIGHTS = (0.0, 0.03, 0.1, 0.15, 0.3, 1.0)
"""Of popularity, of which validation chooses one."""
MIN_ITEMS = (1, 2)
"""Words that fewer items have are left out; validation chooses."""
_FIELDS: tuple[tuple[Field, ...], ...] = (("titles",), ("genres",), ("titles", "genres"))

Measured = list[dict[str, Tensor]]
"""What `measure_users` gives for each of the K organisations."""


def measure_popularity(data: FederatedData, split: Split) -> Measured:
    """Rank by the number of interactions of all users before validation, or before the test."""
    testing = split == "test"
    counts = popularity(data.split.before_test() if testing else data.split.train, data.n_items)
    return [_ranked_by(counts, queries) for queries in _queries(data, split)]


def measure_own_popularity(data: FederatedData, split: Split) -> Measured:
    """Rank by the number of interactions of the client's own users; nothing leaves a client.

    Items that none of them had come behind, by their number.
    """
    return list(map(_ranked_by, _own(data, split), _queries(data, split)))


@dataclass(frozen=True)
class RuleResult:
    """The rule as validation chose it.

    Attributes:
        words: which fields of the items are compared.
        min_items: words that fewer items have are left out.
        weight: a, of popularity.
        own: c, of popularity among the client's own users.
        valid: by organisation.
        test: the same.
    """

    words: tuple[Field, ...]
    min_items: int
    weight: float
    own: float
    valid: Measured
    test: Measured


def has_words(items: Catalogue) -> bool:
    """Whether there is anything to compare the items by."""
    return items.titles is not None or items.genres is not None


def title_rule(data: FederatedData, counts: Whose | None = "public") -> RuleResult:
    """Rank by cosine(words of the item, of the history) + a log(1 + count) + c log(1 + own count).

    The words are TF-IDF vectors, of a history's items the sum, each counting `DECAY` for every
    newer one. What words, which are left out, a and c, are those with the best validation Recall@10
    of all users, also where c gains little (a run takes none there). Nothing is trained.

    Args:
        data: of all clients.
        counts: whose are known. With public ones, or each client's own, nothing of a client leaves
            it but that recall; with everybody's, the sum of all clients' counts, before the test up
            to the test. Without "own" or "both" c is 0, with "own" alone a is, and with None both
            are.

    Raises:
        UserError: the items have neither titles nor genres.
    """
    items = data.catalogue
    if not has_words(items):
        raise UserError(f"{items.source} has neither titles nor genres to compare items by")
    weights = (0.0,) if counts in ("own", None) else WEIGHTS
    grid = list(product(weights, STRENGTHS if counts in ("own", "both") else (0.0,)))
    best, found = -1.0, None
    for fields, min_items, words in _comparisons(items):
        measured = _measure(words, data, "valid", counts, grid)
        for (weight, own), valid in zip(grid, measured, strict=True):
            recall = mean_recall(valid)
            if recall > best:
                best, found = recall, (fields, min_items, weight, own, valid, words)
    assert found is not None  # there are words, and somebody to validate on
    fields, min_items, weight, own, valid, words = found
    (test,) = _measure(words, data, "test", counts, [(weight, own)])
    return RuleResult(fields, min_items, weight, own, valid, test)


def mean_recall(measured: Measured) -> float:
    """Recall@10 of all users."""
    return float(torch.cat([part["recall@10"] for part in measured]).mean())


def _comparisons(items: Catalogue) -> Iterator[tuple[tuple[Field, ...], int, ItemWords]]:
    """What the items may be compared by."""
    for fields in _FIELDS:
        if any(getattr(items, field) is None for field in fields):
            continue
        for min_items in MIN_ITEMS:
            try:
                yield fields, min_items, ItemWords(items.words(fields), min_items)
            except UserError:
                if min_items == 1:
                    raise  # no words at all; else none that items share


def _measure(
    words: ItemWords,
    data: FederatedData,
    split: Split,
    counts: Whose | None,
    grid: Sequence[tuple[float, float]],
) -> list[Measured]:
    """Measure the rule with each pair of a and c."""
    known = data.counts("public" if counts == "public" else "everybody", split).double().log1p()
    by_client = [
        measure_each(
            lambda part: words.of_histories(part.history, DECAY),
            [a * known + c * own for a, c in grid],
            queries,
        )
        for own, queries in zip(_own(data, split), _queries(data, split), strict=True)
    ]
    return [list(measured) for measured in zip(*by_client, strict=True)]


def _ranked_by(counts: Tensor, queries: Queries) -> dict[str, Tensor]:
    """Measure users who are all shown the items in one order, by ``(n_items,)``."""
    return measure_users(lambda part: counts.expand(len(part), -1), queries)


def _own(data: FederatedData, split: Split) -> list[Tensor]:
    """Log(1 + count) among each client's users, ``(n_items,)``."""
    clients = data.clients
    return [own_counts(clients[place], split, data.n_items) for place in range(len(clients))]


def _queries(data: FederatedData, split: Split) -> list[Queries]:
    return data.clients.test if split == "test" else data.clients.valid
