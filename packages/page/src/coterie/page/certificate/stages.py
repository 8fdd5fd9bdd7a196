"""Stages of several plays of a federation's game, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.local_training.fit import Fitted
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.divergence import has_diverged, restored
from coterie.core.methods.kit.evaluation import Quality
from coterie.core.methods.kit.training import changes
from coterie.core.tensors import tree
from coterie.page.algorithm import aggregated


@dataclass(frozen=True)
class Condition:
    """Gaming conditions z of D plays.

    Attributes:
        weights: W, each ``(D, ...)``.
        accuracy: ``(D, N)`` of the clients' last models on their validation samples.
        seen: ``(D, N)`` of the same on D_CS.
    """

    weights: Params
    accuracy: Tensor
    seen: Tensor

    def play(self, d: int) -> Params:
        """W of one play, each ``(...)``."""
        return {name: value[d] for name, value in self.weights.items()}


@dataclass(frozen=True)
class Trained:
    """What the leaders made of a stage, in D plays; in one, without the first axis.

    Attributes:
        models: ``(D, N, ...)``; W of a client that diverged.
        loss: ``(D, N)`` on their validation samples: infinite for one that diverged, NaN where it
            cannot be measured.
        accuracy: ``(D, N)``, 0 for one that diverged.
        counts: ``(D, N)`` bool, whose models the follower weighs.
    """

    models: Params
    loss: Tensor
    accuracy: Tensor
    counts: Tensor

    def play(self, d: int) -> Trained:
        """One play."""
        return tree.map_tensors(lambda leaf: leaf[d], self)

    def replaced(self, plays: Tensor, who: Tensor, rows: Trained) -> Trained:
        """Put what K clients made of it, ``(K, ...)``, in the places of ``who`` in ``plays``."""
        return tree.map_tensors(lambda leaf, some: leaf.index_put((plays, who), some), self, rows)

    @property
    def counted(self) -> Params:
        """Models that the follower weighs in one play, ``(A, ...)``."""
        return {name: value[self.counts] for name, value in self.models.items()}

    def mixed(self, start: Params, p: Tensor) -> Params:
        """The next W after a stage of one play from ``start``, by p ``(N,)`` or zeros."""
        return aggregated(start, changes(self.models, start), p)


def outcome(start: Params, fitted: Fitted, quality: Quality, some: Tensor) -> Trained:
    """Put what a training that diverged gives in the place of such clients' numbers.

    Args:
        start: what K clients began with, each ``(K, ...)``.
        fitted: what they have trained.
        quality: of that on their validation samples.
        some: ``(K,)`` bool, who has samples to train on.
    """
    diverged = has_diverged(fitted, quality)
    models = restored(diverged, fitted, start).params
    loss = quality.loss.masked_fill(diverged, torch.inf)
    accuracy = quality.accuracy.masked_fill(diverged, 0.0)
    return Trained(dict(models), loss, accuracy, some & loss.isfinite())


def all_weights(p: Tensor, counts: Tensor) -> Tensor:
    """Weights ``(N,)`` float64 of all clients, by those of the A that count.

    Example:
        >>> all_weights(torch.tensor([0.25, 0.75]), torch.tensor([True, False, True])).tolist()
        [0.25, 0.0, 0.75]
    """
    return torch.zeros(len(counts), dtype=torch.float64).masked_scatter(counts, p.double())


def equal_weights(counts: Tensor) -> Tensor:
    """Equal weights ``(N,)`` of the clients that count; zeros where there is none."""
    return counts.double() / counts.sum().clamp(min=1)
