"""What recommenders of users and items have in common: batches, layers, side information."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.tensors.stacked import Ragged


class Pairs(NamedTuple):
    """Labelled (user, item) pairs, for pointwise losses."""

    user: Tensor  # (B,) int64
    item: Tensor  # (B,) int64
    label: Tensor  # (B,) float, 1 for a positive, 0 for a negative


class Triples(NamedTuple):
    """A positive and a negative item of the same user, for pairwise losses."""

    user: Tensor  # (B,) int64
    positive: Tensor  # (B,) int64
    negative: Tensor  # (B,) int64


@dataclass(frozen=True)
class RankingBatch:
    """Users to rank all items for."""

    user: Tensor  # (C,) int64
    excluded: Ragged  # C rows of items left out of the ranking
    targets: Ragged  # C rows of items to find

    def to(self, device: torch.device | str, **options: Any) -> RankingBatch:
        """Copy the users to a device; the rows stay on the CPU, where ranks are counted."""
        return RankingBatch(self.user.to(device, **options), self.excluded, self.targets)


# Dense layers, drawn by torch's current generator.


def hidden_layer(inputs: int, outputs: int) -> nn.Linear:
    """A hidden layer: weights as in Glorot and Bengio (2010), biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def output_layer(width: int, offset: bool = False) -> nn.Linear:
    """A layer of one output: weights uniform as in LeCun et al. (1998).

    Args:
        width: of its input.
        offset: whether a constant is added; it starts at 0.
    """
    layer = nn.Linear(width, 1, bias=offset)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    if offset:
        nn.init.zeros_(layer.bias)
    return layer


# What is known of users and items beside who had what: profiles, genres.


@dataclass(frozen=True)
class Sides:
    """Features of all users and of all items, where there are any.

    Attributes:
        users: ``(n_users, d_u)`` or None.
        items: ``(n_items, d_i)`` or None.
    """

    users: Tensor | None = None
    items: Tensor | None = None

    def __len__(self) -> int:
        return sum(features is not None for features in (self.users, self.items))


NO_SIDES = Sides()
"""Nothing is known but who had what."""


class SideMap(nn.Module):
    """Features x of users or items, mapped by a linear layer to W x + b.

    The features are constants: they are in no state dict, and nothing trains them.

    Args:
        features: ``(n, d)``.
        dim: width of what is given.
    """

    features: Tensor

    def __init__(self, features: Tensor, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", features, persistent=False)
        self.map = hidden_layer(features.shape[1], dim)

    def forward(self, number: Tensor | None) -> Tensor:
        """Map those of some numbers, ``(...)`` -> ``(..., dim)``; None = of all, ``(n, dim)``."""
        mapped: Tensor = self.map(self.features if number is None else self.features[number])
        return mapped


def side_map(features: Tensor | None, dim: int) -> SideMap | None:
    """Make a map drawn by torch's current generator; None where nothing is known."""
    return None if features is None else SideMap(features, dim)


# What every recommender of users and items has in common.


class Recommender(nn.Module, ABC):
    """A network that scores items for users; scores are logits.

    Attributes:
        n_users: number of users.
        n_items: number of items.
    """

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.n_users = n_users
        self.n_items = n_items

    @abstractmethod
    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs.

        Args:
            user: int64, any shape.
            item: int64, of a shape that broadcasts with ``user``.

        Returns:
            Logits in the broadcast shape.
        """

    def item_scores(self, user: Tensor) -> Tensor:
        """Logits of all items for some users: ``(C,)`` int64 -> ``(C, n_items)``."""
        items = torch.arange(self.n_items, device=user.device)
        return self.score(user[:, None], items)

    def score_cells(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs that have users in common: cells in the rows of some users.

        Models for whom it is faster pass each vector once, not once for each pair it is in.

        Args:
            user: ``(B,)`` int64, all different.
            row: ``(n,)`` int64, position in ``user`` of each pair's user.
            item: ``(n,)`` int64.

        Returns:
            ``(n,)``.
        """
        return self.score(user[row], item)

    def loss(self, batch: Pairs | Triples) -> Tensor:
        """Mean loss of a batch, ``()``: `bce` for pairs, `bpr` for triples."""
        if isinstance(batch, Triples):
            positive = self.score(batch.user, batch.positive)
            return bpr(positive, self.score(batch.user, batch.negative))
        return bce(self.score(batch.user, batch.item), batch.label)


def bce(score: Tensor, label: Tensor) -> Tensor:
    """Pointwise loss: mean binary cross entropy of logits ``(B,)`` against labels ``(B,)``."""
    return F.binary_cross_entropy_with_logits(score, label)


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """Pairwise loss: mean of -ln sigmoid(s_ui - s_uj) (Rendle et al., UAI 2009, BPR-Opt).

    Args:
        positive: ``(B,)`` logits s_ui of items the user has.
        negative: ``(B,)`` logits s_uj of items the user has not.
    """
    return -F.logsigmoid(positive - negative).mean()


def table(rows: int, dim: int, sd: float = 0.01) -> nn.Embedding:
    """Embedding table ``(rows, dim)`` drawn from N(0, sd²) by torch's current generator."""
    return nn.Embedding.from_pretrained(torch.empty(rows, dim).normal_(0.0, sd), freeze=False)


def rows_of(table: nn.Embedding, number: Tensor | None) -> Tensor:
    """Rows of a table, ``(..., dim)``; None = all, which need no gathering."""
    rows: Tensor = table.weight if number is None else table(number)
    return rows
