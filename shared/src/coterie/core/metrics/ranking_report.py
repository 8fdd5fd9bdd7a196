"""How good the recommendations of clients are: what they report, and how it is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.metrics.ranking import ScoreRows, copies_of, find_targets, ndcg, recall
from coterie.core.protocol.messages import EVERYTHING, Report, Reveals, leaves
from coterie.core.protocol.uploads import Number
from coterie.core.tensors.stacked import Ragged

Split = Literal["valid", "test"]
"""Which items are to be found."""


@dataclass(frozen=True)
class RankingReport(Report):
    """Quality of recommendations, a column for each length k; NaN without an item to find.

    In the list form the axis of clients is missing.
    """

    recall: Tensor = leaves(  # (C, K) float64
        "Recall@k",
        reveals=Reveals.MEASUREMENT,
        depends_on=EVERYTHING,
        expected=Number(axes=1),
    )
    ndcg: Tensor = leaves(  # (C, K) float64
        "NDCG@k",
        reveals=Reveals.MEASUREMENT,
        depends_on=EVERYTHING,
        expected=Number(axes=1),
    )

    def by_name(self, lengths: Sequence[int]) -> dict[str, Tensor]:
        """Give the columns, ``(C,)`` each, by name.

        Args:
            lengths: the k of the columns.

        Example:
            >>> list(RankingReport(torch.ones(3, 1), torch.ones(3, 1)).by_name((20,)))
            ['recall@20', 'ndcg@20']
        """
        return {
            f"{name}@{k}": values[..., column]
            for name, values in (("recall", self.recall), ("ndcg", self.ndcg))
            for column, k in enumerate(lengths)
        }


def rank_all(
    scores: Tensor, targets: Ragged, lengths: Sequence[int], seen: Sequence[Ragged] = ()
) -> RankingReport:
    """Rank all items that clients have not seen, and look for their targets.

    Args:
        scores: ``(C, n_items)``. A client with one that is not finite reports infinity, which is
            refused: it drops out alone and by name.
        targets: C rows of items to be found.
        lengths: the k of the lists.
        seen: items left out, C rows of item numbers each.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7], [0.1, float("nan"), 0.3]])
        >>> found = rank_all(scores, Ragged.from_lists([[1], [0]]), (1, 2))
        >>> found.recall.tolist()
        [[0.0, 1.0], [inf, inf]]
    """
    return rank_blocks(copies_of(scores), targets, lengths, seen, scores.shape[1])


def rank_blocks(
    score: ScoreRows,
    targets: Ragged,
    lengths: Sequence[int],
    seen: Sequence[Ragged],
    n_items: int,
) -> RankingReport:
    """Do what `rank_all` does by scores that are made for a block of clients at a time."""
    rank, broken = find_targets(score, targets, max(lengths), seen, n_items)
    found = [
        torch.stack([metric(rank.clamp(max=k), targets, k) for k in lengths], dim=1)
        for metric in (recall, ndcg)
    ]
    return RankingReport(*(columns.masked_fill(broken[:, None], torch.inf) for columns in found))


def measure_rows(
    score: Callable[[Tensor], Tensor],
    seen: Ragged,
    targets: Ragged,
    lengths: Sequence[int],
) -> Tensor:
    """Rank all items for every user, those it had left out, and look for its targets.

    Args:
        score: scores all items for the users at some positions, ``(m,)`` int64 ->
            ``(m, n_items)``; called once, for those who are measured.
        seen: n rows of items, what each user had.
        targets: n rows of items to be found.
        lengths: the K values of k.

    Returns:
        Recall and NDCG, ``(2, n, K)`` float64, a column for each k; NaN for a user who had
        nothing or has nothing to find, infinity for one whose scores are not finite, which the
        guard refuses, so that it drops out alone and by name.
    """
    measured = torch.full((2, len(seen), len(lengths)), torch.nan, dtype=torch.float64)
    rows = ((seen.lengths > 0) & (targets.lengths > 0)).nonzero().flatten()
    if not rows.numel():
        return measured
    found = rank_all(score(rows), targets.take(rows), lengths, (seen.take(rows),))
    measured[:, rows] = torch.stack([found.recall, found.ndcg])
    return measured
