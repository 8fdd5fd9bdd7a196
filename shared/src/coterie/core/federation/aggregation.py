"""What stands in for a method's mean where uploads may be made up: bounded norms, a robust rule.

A rule gives what all clients would have to have sent for their mean to be what it finds. So no
method knows of it: its sums are that upload times the weight of all who answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.rules import Median, TrimmedMean, krum
from coterie.core.privacy.noise import norms_of, scaled, shortening
from coterie.core.privacy.releases import change_releases, releases
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.uploads import UNBOUNDED, Fold, weighted_sum
from coterie.core.settings.aggregate import AggregateSettings
from coterie.core.tensors import tree
from coterie.core.tensors.rows import Rows


@dataclass(frozen=True)
class Cast:
    """What is compared: uploads of clients, or the means of nodes.

    Attributes:
        upload: stacked over K of them.
        weight: ``(K,)`` what each counts by in the method's mean.
    """

    upload: Any
    weight: Tensor

    @staticmethod
    def of_clients(fold: Fold, up: Any, n_clients: int) -> Cast:
        """Each client for itself; rows as they travel, so that no engine rounds otherwise."""
        up = tree.map_values(lambda leaf: leaf.wire() if isinstance(leaf, Rows) else leaf, up)
        return Cast(up, fold.weights(up, n_clients))

    @staticmethod
    def of_node(fold: Fold, total: Any, n_clients: int) -> Cast:
        """The mean over the clients of a node, by what they were folded to."""
        sums, weight = fold.sums(total, n_clients, UNBOUNDED)
        mean = tree.map_values(lambda leaf: _divided(leaf, weight), sums)
        return Cast(tree.as_stack(mean), torch.tensor([weight], dtype=torch.float64))

    def take(self, index: Tensor) -> Cast:
        """Those at the ascending positions ``index``, ``(L,)``."""
        return Cast(tree.take(self.upload, index), self.weight[index])


def together(casts: list[Cast], order: Tensor | None = None) -> Cast:
    """All that is compared, one after the other, in an order."""
    upload = tree.concatenate(*[cast.upload for cast in casts])
    whole = Cast(upload, torch.cat([cast.weight.double() for cast in casts]))
    return whole if order is None else whole.take(order)


@dataclass(frozen=True)
class Aggregation:
    """Stands in for the mean over clients, or nodes.

    Attributes:
        settings: the rule, and what is bounded.
    """

    settings: AggregateSettings

    @property
    def compares(self) -> bool:
        """Whether uploads are compared, and not only shortened each for itself."""
        return self.settings.norm_bound is None or self.settings.rule not in ("none", "mean")

    def check(self, fold: Fold) -> None:
        """Check that a fold is a mean that can be stood in for.

        Raises:
            UserError: it is none, or nodes cannot make it.
        """
        if not fold.is_mean:
            raise UserError(
                f"aggregate.rule stands in for a mean, and {type(fold).__name__} is not known to "
                "be one: fold by Sum or Weighted, or say is_mean if it sums all fields by weights"
            )
        if self.settings.over == "nodes" and fold.to_plain() is None:
            raise UserError(
                f"'aggregate.over' nodes compares what is folded where the clients are, and "
                f"{type(fold).__name__} has no name by which they know it: set it to clients"
            )

    def total(self, fold: Fold, cast: Cast, journal: Journal) -> Any:
        """What a fold of all uploads would be, if all were what the rule finds.

        Args:
            fold: the method's.
            cast: of all who answered.
            journal: of the round.

        Raises:
            UserError: too few answered for the rule.
        """
        some = (cast.weight > 0).nonzero().flatten()  # who has no data counts in no mean
        weight = cast.weight.sum()
        if not some.numel():
            return fold.total(weighted_sum(cast.upload), weight)
        cast = cast.take(some)
        if fold.claims and self.settings.rule not in ("none", "mean"):  # no claim enlarges the sum
            weight = len(some) * Median()(cast.weight[:, None])[0]
        found = self.found(cast, journal)
        sums = tree.map_values(lambda leaf, like: _sums(leaf, weight, like), found, cast.upload)
        return fold.total(sums, weight)

    def summed(
        self, change: dict[str, Tensor], shares: Tensor | None, journal: Journal
    ) -> dict[str, Tensor]:
        """Σ shares_i times what the rule finds in changes, ``(A, ...)``, that a server has seen.

        Raises:
            UserError: there are too few for the rule, or single clients' are not compared.
        """
        if self.settings.over == "nodes":
            raise UserError(
                "'aggregate.over' nodes is for methods that sum what clients send where they are, "
                "and this one looks at each client's: set it to clients"
            )
        if shares is None:
            shares = torch.ones(len(next(iter(change.values()))))
        if not len(shares):
            return {name: value.sum(0) for name, value in change.items()}
        if self.settings.rule in ("median", "trimmed-mean") and bool((shares != shares[0]).any()):
            raise UserError(
                f"aggregate.rule {self.settings.rule} has no use for the weights that this server "
                "gives its clients: choose mean, krum or multi-krum, or have it weigh all alike"
            )
        found = self.found(Cast(change, shares), journal, weighs=True)
        weight = shares.sum()
        return {name: _sums(found[name], weight, like) for name, like in change.items()}

    def found(self, cast: Cast, journal: Journal, weighs: bool = False) -> Any:
        """One upload in place of the mean, without a client axis; errors as for `total`.

        Args:
            cast: what is compared.
            journal: of the round.
            weighs: whether those that Krum keeps count by their weights, which are no claims.
        """
        upload, weight, count = self._bounded(cast.upload, journal), cast.weight, len(cast.weight)
        rule, share = self.settings.rule, self.settings.attackers
        if rule in ("median", "trimmed-mean"):
            of_each = Median() if rule == "median" else TrimmedMean(share)
            return tree.map_values(lambda leaf: of_each(_real(leaf)), upload)
        if rule in ("krum", "multi-krum"):
            index = krum(_compared(upload), count, share, several=rule == "multi-krum")
            already = journal.scalars.get("fed/left_out", 0.0)
            journal.scalar("fed/left_out", already + count - index.numel())
            upload, weight = tree.take(upload, index), weight[index]
            if not weighs or not weight.sum() > 0:
                weight = torch.ones(index.numel())
        return mean(upload, weight)

    def _bounded(self, upload: Any, journal: Journal) -> Any:
        """Scale down uploads that are too long."""
        if not (values := _compared(upload)):
            return upload
        norms = norms_of(values)
        given = self.settings.norm_bound
        bound = float(Median()(norms[:, None])) if given is None else given
        journal.scalar("fed/norm_bound", bound)
        already = journal.scalars.get("fed/bounded", 0.0)
        journal.scalar("fed/bounded", already + int((norms > bound).sum()))
        factor = shortening(norms, bound)
        if isinstance(upload, dict):
            return tree.map_values(lambda value: scaled(value, factor), upload)
        return change_releases(upload, lambda _, value: scaled(value, factor))


def _compared(upload: Any) -> list[Rows | Tensor]:
    """What is looked at of uploads: their releases, or all of a change that a server has seen."""
    return list(upload.values()) if isinstance(upload, dict) else releases(upload)


def mean(upload: Any, weight: Tensor) -> Any:
    """Mean of stacked uploads by weights, ``(K,)``, without a client axis; rows keep theirs."""
    share = weight.double() / weight.sum()
    return tree.map_values(
        lambda leaf: weighted_sum(_real(leaf), share.to(_real(leaf).dtype)), upload
    )


def _real(leaf: Any) -> Any:
    """Counts and flags as real numbers, of which there is a mean."""
    return leaf if isinstance(leaf, Rows) or leaf.is_floating_point() else leaf.double()


def _divided(leaf: Any, weight: float) -> Any:
    if isinstance(leaf, Rows):
        return leaf.scaled(torch.tensor([1 / weight], dtype=leaf.dtype)) if weight else leaf
    return _real(leaf) / weight if weight else leaf


def _sums(leaf: Any, weight: Tensor, like: Any) -> Any:
    """The sum over clients of which this is the mean; counts are whole."""
    if isinstance(leaf, Rows):
        return leaf.scaled(weight[None].to(leaf.dtype))
    total = leaf * weight
    return total.to(like.dtype) if like.is_floating_point() else total.round().long()


def aggregation_of(settings: AggregateSettings) -> Aggregation | None:
    """What stands in for a mean by these settings; None for nothing."""
    return Aggregation(settings) if settings.acts else None
