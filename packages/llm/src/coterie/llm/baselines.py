"""What PPLR is compared with on the same users: popularity, titles, FedMF, LightFR, FedPerGNN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.methods.ranking.client import RankingClient
from coterie.core.methods.ranking.fedmf import UPDATE, FedMFClient, FedMFServer, ItemTable
from coterie.core.methods.ranking.fedpergnn import FedPerGNNClient, FedPerGNNServer
from coterie.core.methods.ranking.lightfr import LightFRClient, LightFRServer
from coterie.core.methods.ranking.references import popularity
from coterie.core.methods.ranking.server import RankingServer
from coterie.core.privacy.attack import AttackReport, attack_curve
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key
from coterie.llm.backbone_settings import Field, Whose
from coterie.llm.data.catalogue import Catalogue, ItemWords
from coterie.llm.data.client_data import PUBLIC, FederatedData
from coterie.llm.data.examples import Queries, emptied
from coterie.llm.quality import LENGTHS, blocks, measure_scores, measure_users
from coterie.llm.settings import Settings

_ITEM_ROWS = {"lightfr": "votes on their bits", "fedpergnn": "noisy and among made-up ones"}


def measure_popularity(
    data: FederatedData, split: Literal["valid", "test"]
) -> list[dict[str, Tensor]]:
    """Rank by the number of interactions of all users before validation, or before the test.

    Returns:
        What `measure_users` gives for each of the K organisations.
    """
    testing = split == "test"
    counts = popularity(data.split.before_test() if testing else data.split.train, data.n_items)
    queries = data.clients.test if testing else data.clients.valid
    return [measure_users(lambda part: counts.expand(len(part), -1), of_one) for of_one in queries]


def user_server(settings: Settings, n_items: int) -> RankingServer:
    """Make the server of ``settings.method``, one of `USER_METHODS`."""
    dtype = getattr(torch, settings.engine.dtype)
    match settings.method:
        case "fedmf":
            return FedMFServer(settings.fedmf, n_items, LENGTHS, dtype)
        case "lightfr":
            return LightFRServer(settings.lightfr, n_items, LENGTHS)
        case _:
            return FedPerGNNServer(settings.fedpergnn, n_items, LENGTHS, dtype)


def user_client(settings: Settings, n_items: int, secret: CommonSecret) -> RankingClient:
    """Make the client; the secret is of all users together, and the server does not get it."""
    dtype = getattr(torch, settings.engine.dtype)
    match settings.method:
        case "fedmf":
            return FedMFClient(settings.fedmf, n_items, LENGTHS, secret, dtype)
        case "lightfr":
            return LightFRClient(settings.lightfr, n_items, LENGTHS)
        case _:
            return FedPerGNNClient(settings.fedpergnn, n_items, LENGTHS, secret, dtype)


def attack_users(
    module: FederatedRun, settings: Settings, scales: Sequence[float]
) -> dict[float, AttackReport]:
    """Attack one upload of every user of a trained FedMF: which of all items are positives?

    Raises:
        UserError: what leaves is no steps on item rows in the clear.
    """
    method = settings.method
    if method != "fedmf" or settings.fedmf.transport != "plain":
        form = _ITEM_ROWS.get(method, f"encrypted or masked ({settings.fedmf.transport})")
        raise UserError(
            f"item rows do leave a client of --method {method}, {form}, but the attack is "
            "available only for the steps on rows of --method fedmf --fedmf.transport plain"
        )
    cohort = module.newest_cohort()
    table = module.server_state.best["items"]
    up = cohort.ask(UPDATE, ItemTable(table)).up
    assert up is not None
    assert up.rows is not None
    uploads = up.rows.wire()
    keys = Key.from_seed(settings.seed).fold("attack").fold(cohort.ids)
    return attack_curve(uploads, table, module.newest_data.train, scales, keys)


def all_users(data: FederatedData) -> UserRows:
    """Items of the clients' and the public users; the latter have nothing to be found."""
    split = data.split
    ids = torch.nonzero((data.client_of >= 0) | (data.client_of == PUBLIC)).flatten()
    measured = (data.client_of >= 0)[ids]
    valid, test = (emptied(part.take(ids), measured) for part in (split.valid, split.test))
    return UserRows(ids, split.train.take(ids), valid, test)


DECAY = 0.8
WEIGHTS = (0.0, 0.03, 0.1, 0.15, 0.3, 1.0)
"""Of popularity, of which validation chooses one."""
MIN_ITEMS = (1, 2)
"""Words that fewer items have are left out; validation chooses."""
_FIELDS: tuple[tuple[Field, ...], ...] = (("titles",), ("genres",), ("titles", "genres"))

Measured = list[dict[str, Tensor]]
"""What `measure_users` gives for each of the K organisations."""


@dataclass(frozen=True)
class RuleResult:
    """The rule as validation chose it.

    Attributes:
        words: which fields of the items are compared.
        min_items: words that fewer items have are left out.
        weight: a, of popularity.
        valid: by organisation.
        test: the same.
    """

    words: tuple[Field, ...]
    min_items: int
    weight: float
    valid: Measured
    test: Measured


def has_words(items: Catalogue) -> bool:
    """Whether there is anything to compare the items by."""
    return items.titles is not None or items.genres is not None


def title_rule(data: FederatedData, counts: Whose = "public") -> RuleResult:
    """Rank by cosine(words of the item, of the history) + a log(1 + count).

    The words are TF-IDF vectors, of a history's items the sum, each counting `DECAY` for every
    newer one. What words, which are left out, and a, are those with the best validation Recall@10
    of all users. Nothing is trained. With public counts nothing of a client leaves it but that
    recall; with everybody's, the sum of all clients' counts, before the test up to the test.

    Raises:
        UserError: the items have neither titles nor genres.
    """
    items = data.catalogue
    if not has_words(items):
        raise UserError(f"{items.source} has neither titles nor genres to compare items by")
    popular = {
        split: torch.log1p(data.counts(counts, split).double()) for split in ("valid", "test")
    }
    best, found = -1.0, None
    for fields, min_items, words in _comparisons(items):
        biases = [weight * popular["valid"] for weight in WEIGHTS]
        measured = _measure(words, biases, data.clients.valid)
        for weight, valid in zip(WEIGHTS, measured, strict=True):
            recall = mean_recall(valid)
            if recall > best:
                best, found = recall, (fields, min_items, weight, valid, words)
    assert found is not None  # there are words, and somebody to validate on
    fields, min_items, weight, valid, words = found
    (test,) = _measure(words, [weight * popular["test"]], data.clients.test)
    return RuleResult(fields, min_items, weight, valid, test)


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


def mean_recall(measured: Measured) -> float:
    """Recall@10 of all users."""
    return float(torch.cat([part["recall@10"] for part in measured]).mean())


def _measure(
    words: ItemWords, biases: Sequence[Tensor], queries: Sequence[Queries]
) -> list[Measured]:
    """Measure the rule with each bias."""
    by_client = [_measure_one(words, biases, of_one) for of_one in queries]
    return [list(measured) for measured in zip(*by_client, strict=True)]


def _measure_one(words: ItemWords, biases: Sequence[Tensor], queries: Queries) -> Measured:
    """Measure one organisation, for each bias; histories are compared with items only once."""
    found: Measured = [{} for _ in biases]
    for block in blocks(queries):
        alike = words.of_histories(block.history, DECAY)
        for number, bias in enumerate(biases):
            part = measure_scores(alike + bias, block)
            known = found[number]
            found[number] = {n: torch.cat([known[n], part[n]]) for n in part} if known else part
    return found
