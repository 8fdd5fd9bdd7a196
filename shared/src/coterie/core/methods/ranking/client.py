"""What the clients of the federated baselines share: private state, samples, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.interactions.negatives import NO_NEGATIVE, sample_negatives
from coterie.core.data.interactions.splits import UserRows
from coterie.core.metrics.ranking_report import RankingReport, measure_rows
from coterie.core.protocol.client import Client, Factors, RecommendsItems
from coterie.core.protocol.messages import Private, Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class UserState(Private):
    """A user's private state; stacked over C users.

    Attributes:
        params: what the method keeps on the device, each ``(C, ...)``.
        best: the same at the best validation round; what is served and tested.
    """

    params: dict[str, Tensor]
    best: dict[str, Tensor]

    @staticmethod
    def new(params: dict[str, Tensor]) -> UserState:
        """State of newcomers, for whom every round was the best so far."""
        return UserState(params, tree.clone(params))


KEEP_BEST = Step("keep_best", None, None)


class RankingClient(Client[UserState, UserRows], RecommendsItems[UserState]):
    """A user who learns a ranking from the items it has.

    Args:
        settings: of the method.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k.
        dtype: of all parameters.
    """

    def __init__(
        self,
        settings: Any,
        n_items: int,
        lengths: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.settings, self.dtype = settings, dtype
        self.n_items, self.lengths = n_items, tuple(lengths)

    def start(self, key: Key) -> dict[str, Tensor]:
        """Draw what C newcomers keep, each ``(C, ...)``."""
        raise NotImplementedError

    def scores(self, params: dict[str, Tensor], down: Any, history: Ragged | None = None) -> Tensor:
        """Score all items for C users, ``(C, n_items)``.

        Args:
            params: of the users.
            down: the public part.
            history: C rows of items that they have; None for those they were last fitted to.
        """
        raise NotImplementedError

    def fitted(
        self, params: dict[str, Tensor], down: Any, history: Ragged, key: Key
    ) -> dict[str, Tensor]:
        """Fit what C users keep to their items, with the public part fixed."""
        raise NotImplementedError

    def enrol(self, data: UserRows, key: Key) -> UserState:
        """Draw the users' parameters."""
        return UserState.new(self.start(key))

    def predict(self, down: Any, mine: UserState) -> Tensor:
        """Score all items with the parameters of the best round, ``(C, n_items)``."""
        return self.scores(mine.best, down)

    def adapt(self, down: Any, history: Ragged, key: Key) -> UserState:
        """Fit newcomers to their items, with the public part fixed."""
        return UserState.new(self.fitted(self.start(key), down, history, key))

    def work(self, data: UserRows) -> Tensor:
        """Training items of each user, ``(C,)``."""
        return data.train.lengths

    @KEEP_BEST
    def keep_best(
        self, down: None, mine: UserState, data: UserRows, key: Key
    ) -> tuple[None, UserState]:
        """Keep the state of the round that was the best on validation so far."""
        return None, replace(mine, best=tree.clone(mine.params))

    def ranked(self, down: Any, mine: UserState, data: UserRows) -> RankingReport:
        """Rank all items that users do not have yet, and look for those of ``down.split``.

        A test is of the best round.
        """
        testing = down.split == "test"
        params, history = (mine.best, known_items(data)) if testing else (mine.params, data.train)

        def score(rows: Tensor) -> Tensor:
            return self.scores(tree.take(params, rows), down, history.take(rows))

        return RankingReport(*measure_split(score, data, down.split, self.lengths))


def products(items: Tensor, vectors: Tensor) -> Factors:
    """Factors of scores <vector, row>: items ``(n_items, d)``, vectors ``(C, d)``."""
    return Factors(items, vectors, vectors.new_zeros(len(vectors)))


def measure_split(
    score: Callable[[Tensor], Tensor], data: UserRows, split: str, lengths: Sequence[int]
) -> Tensor:
    """Rank all items that C users do not have yet, and look for those of a split.

    What a user has is train, for the test validation as well; for the arguments and for what is
    given, ``(2, C, K)``, see `measure_rows`.
    """
    if split == "valid":
        return measure_rows(score, data.train, data.valid, lengths)
    return measure_rows(score, known_items(data), data.test, lengths)


def known_items(data: UserRows) -> Ragged:
    """Train and validation items of each user."""
    rows = torch.cat([data.train.rows, data.valid.rows])
    items = torch.cat([data.train.values, data.valid.values])
    return Ragged.from_pairs(rows, items, len(data.train))


@dataclass(frozen=True)
class Samples:
    """Positives and sampled negatives of C users, as tables: run clients in chunks.

    Attributes:
        label: ``(C, n_items)`` 1 for a positive, else 0.
        weight: ``(C, n_items)`` how often the pair was sampled: 1 for a positive.
    """

    label: Tensor
    weight: Tensor


def draw_samples(
    key: Key, positives: Ragged, n_items: int, negatives: int, dtype: torch.dtype = torch.float32
) -> Samples:
    """Draw negatives for each positive, uniformly from the items that are none.

    Args:
        key: the users' keys, ``state`` of shape ``(C,)``.
        positives: C rows of items.
        n_items: number of items.
        negatives: for each positive, with replacement.
        dtype: of the tables.
    """
    known = positives.mask(n_items)
    label = known.to(dtype)
    weight = label.clone()
    if negatives and positives.values.numel():
        drawn = sample_negatives(key, positives, n_items, negatives, known)
        row = positives.rows.repeat_interleave(negatives)
        some = drawn != NO_NEGATIVE  # who has every item has no negatives
        cell = (row * n_items + drawn)[some]
        weight.view(-1).index_add_(0, cell, weight.new_ones(cell.numel()))
    return Samples(label, weight)
