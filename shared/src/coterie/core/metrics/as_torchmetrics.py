"""Ranking metrics as `torchmetrics.Metric`s: over all items, and over held-out rated cells."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from coterie.core.metrics.ranking import RankingMetrics, ranking_metrics
from coterie.core.metrics.rated_cells import Empty, precision_and_ndcg
from coterie.core.tensors.stacked import Ragged

_NAMES = tuple(field.name for field in fields(RankingMetrics))


class FullRanking(Metric):
    """NDCG, recall, hit rate and MRR at k over a full ranking, averaged over clients.

    Every client counts once, whatever its number of targets; a client without a target is not
    counted. Definitions, tie rule and errors: `coterie.core.metrics.ranking`.

    Args:
        k: length of the ranked list.

    Example:
        >>> metric = FullRanking(k=2)
        >>> scores = torch.tensor([[0.9, 0.8, 0.7], [0.1, 0.2, 0.3]])
        >>> metric.update(scores, None, Ragged.from_lists([[0], [0]]))
        >>> metric.compute()["recall@2"].item()
        0.5
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    values: list[Tensor]

    def __init__(self, k: int = 20) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        super().__init__()
        self.k = k
        self.add_state("values", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, excluded: Tensor | Ragged | None, targets: Ragged) -> None:
        """Add a chunk of clients.

        Args:
            scores: ``(C, n_items)`` finite floats.
            excluded: ``(C, n_items)`` bool or C rows of item numbers to leave out, or None.
            targets: C rows of item numbers.

        Raises:
            ValueError: as `ranking_metrics`; nothing is added then.
        """
        found = ranking_metrics(scores, targets, self.k, excluded)
        self.values.append(torch.stack([getattr(found, name) for name in _NAMES], dim=1))

    def per_client(self) -> RankingMetrics:
        """Values of the clients added so far, in the order in which they were added."""
        return RankingMetrics(*self._table().unbind(1))

    def compute(self) -> dict[str, Tensor]:
        """Means over clients, float64: ``ndcg@k``, ``recall@k``, ``hr@k``, ``mrr@k``.

        All are NaN where no client had a target.
        """
        means = self._table().nanmean(0)
        return {f"{name}@{self.k}": mean for name, mean in zip(_NAMES, means, strict=True)}

    def _table(self) -> Tensor:
        # After a synchronisation of processes the state is one tensor instead of a list.
        if isinstance(self.values, list) and not self.values:
            return torch.empty(0, len(_NAMES), dtype=torch.float64)
        return dim_zero_cat(self.values)


# Ranking metrics over held-out rated cells as a `torchmetrics.Metric`.


class RatedRanking(Metric):
    """MAP and NDCG at k of each row's held-out rated cells, averaged over rows.

    Every row counts once, whatever its number of cells; rows without any are not counted.
    Definitions, tie rule and errors: `coterie.core.metrics.rated_cells`. The root of the mean
    squared error is ``torchmetrics.MeanSquaredError(squared=False)``, the accuracy of logits
    ``torchmetrics.classification.BinaryAccuracy`` of ``logits > 0``.

    Args:
        k: length of the ranked list.
        empty: "skip" leaves out rows without a relevant cell, "zero" counts them as 0.

    Example:
        >>> metric = RatedRanking(k=10)
        >>> scores, liked = torch.tensor([0.9, 0.8, 0.5]), torch.tensor([False, True, False])
        >>> metric.update(scores, liked, Ragged.from_lists([[4, 7], [2]]))
        >>> metric.compute()["map@10"].item()
        0.5
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    values: list[Tensor]

    def __init__(self, k: int = 10, empty: Empty = "skip") -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        super().__init__()
        self.k, self.empty = k, empty
        self.add_state("values", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, relevant: Tensor, candidates: Ragged) -> None:
        """Add some rows, each whole.

        Args:
            scores: ``(n,)`` finite floats, one a candidate.
            relevant: ``(n,)`` bool.
            candidates: column numbers of the rows' held-out rated cells.

        Raises:
            ValueError: as `average_precision`; nothing is added then.
        """
        found = precision_and_ndcg(scores, relevant, candidates, self.k, self.empty)
        self.values.append(torch.stack(found, dim=1))

    def per_row(self) -> Tensor:
        """AP@k and NDCG@k of the rows added so far, ``(n_rows, 2)`` float64, NaN: not counted."""
        # After a synchronisation of processes the state is one tensor instead of a list.
        if isinstance(self.values, list) and not self.values:
            return torch.empty(0, 2, dtype=torch.float64)
        return dim_zero_cat(self.values)

    def compute(self) -> dict[str, Tensor]:
        """Means over rows, float64: ``map@k``, ``ndcg@k``; NaN where no row counts."""
        precision, gain = self.per_row().nanmean(0)
        return {f"map@{self.k}": precision, f"ndcg@{self.k}": gain}
