"""Fields that uploads of most methods have, and their mean over clients."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Reveals, leaves
from coterie.core.protocol.replies import FoldedReplies
from coterie.core.protocol.uploads import Bounds, Count, Expected, Fold, Like, Number, weighted_sum

_NOTHING: frozenset[str] = frozenset()


def changed(of: str, depends_on: Set[str] = _NOTHING) -> Any:
    """Declare what training changed in parameters, each ``(C, ...)`` as in the field ``weights``.

    Args:
        of: the content in words, after "change of".
        depends_on: see `coterie.core.protocol.messages.leaves`.
    """
    return leaves(
        f"change of {of}",
        reveals=Reveals.PARAMETERS,
        depends_on=depends_on,
        expected=Like("weights"),
    )


def measured(what: str, depends_on: Set[str] = _NOTHING, expected: Expected | None = None) -> Any:
    """Declare a measurement over a client's data, by default a number ``(C,)``; see `leaves`."""
    return leaves(
        what,
        reveals=Reveals.MEASUREMENT,
        depends_on=depends_on,
        expected=expected or Number(),
    )


def counted(what: str) -> Any:
    """Declare a number of samples, ``(C,)`` int64, which no private field changes."""
    return leaves(what, reveals=Reveals.STEPS, expected=Count())


# The mean over clients: how uploads are summed, and what a server makes of the sums.


class Trained(Protocol):
    """An upload of a trained model, such as `ModelUpdate`."""

    @property
    def change(self) -> Params:
        """Change of the model's parameters."""

    @property
    def samples(self) -> Tensor:
        """Number of samples n_k, ``(C,)`` int64."""

    @property
    def loss(self) -> Tensor:
        """Mean training loss, ``(C,)``."""


M = TypeVar("M", bound=Trained)


@dataclass(frozen=True)
class WeightedSum(Generic[M]):
    """Sums over clients with data.

    Attributes:
        sums: the message of which every field is the weighted sum over the clients.
        weight: ``()`` int64, sum of the weights.
    """

    sums: M
    weight: Tensor


@dataclass(frozen=True)
class Weighted(Fold):
    """Fold of uploads of trained models: `WeightedSum`.

    Attributes:
        by: "samples" weighs a client by n_k, "equal" by 1.
    """

    name: ClassVar[str] = "weighted"
    is_mean = True
    by: str

    @property
    def counts_alike(self) -> bool:  # type: ignore[override]
        """Where clients weigh by 1."""
        return self.by == "equal"

    @property
    def claims(self) -> bool:  # type: ignore[override]
        """How many samples a client has."""
        return self.by == "samples"

    def of(self, up: M) -> WeightedSum[M]:
        """Sum the uploads of some clients."""
        weight = self.weights(up, len(up.samples))
        return WeightedSum(weighted_sum(up, weight), weight.sum())

    def weights(self, up: M, n_clients: int) -> Tensor:
        """n_k, or 1 for who has data."""
        return up.samples if self.by == "samples" else (up.samples > 0).long()

    def total(self, sums: M, weight: Tensor) -> WeightedSum[M]:
        """The sums with their weight."""
        return WeightedSum(sums, weight.round().long())

    def sums(self, total: Any, n_clients: int, bounds: Bounds) -> tuple[Any, float]:
        """The sums, and their weight."""
        weight, most = total.weight, n_clients * (bounds.count if self.by == "samples" else 1)
        fits = weight.shape == () and weight.dtype == torch.int64 and 0 <= int(weight) <= most
        return (total.sums, float(weight)) if fits else (None, 0.0)

    def result(self, up: Any) -> Any:
        """Class of the sums."""
        return WeightedSum[up]


def mean_added(weights: Params, total: WeightedSum[Any]) -> Params:
    """Add the mean change to the model.

    Args:
        weights: w.
        total: what `Weighted` gives.
    """
    change = total.sums.change
    return {name: w + change[name] / total.weight for name, w in weights.items()}


def noted(replies: FoldedReplies[WeightedSum[M]], journal: Journal) -> WeightedSum[M] | None:
    """Note the clients of a round and their mean loss, and give the sums over them.

    Args:
        replies: to an ask that was reduced by `Weighted`.
        journal: of the round.

    Returns:
        What `Weighted` gives; None where no client with data answered.
    """
    journal.scalar("fed/clients", len(replies))
    total = replies.total
    if total is None or not total.weight > 0:
        return None
    journal.scalar("fed/loss", total.sums.loss / total.weight)
    return total
