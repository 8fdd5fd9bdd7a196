"""What an organisation measures on its own held-out cells."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.assisted.learner import Learner
from coterie.assisted.prediction_messages import Held, Quality
from coterie.core.data.interactions.cells import Cells
from coterie.core.metrics.rated_cells import precision_and_ndcg, rmse, sign_accuracy

LENGTH = 10
"""k of MAP@k and NDCG@k."""


def quality(learner: Learner, cells: Cells, scores: Tensor, pooled: bool) -> Quality:
    """Measure scores at held-out cells.

    Args:
        learner: knows whether scores are ratings or logits, and which cells are relevant.
        cells: with the true ratings.
        scores: ``(n,)``.
        pooled: whether to send ratings and scores along.
    """
    relevant, found = cells.values > learner.relevant_above, scores.double()
    ap, gain = precision_and_ndcg(found, relevant, cells.columns, LENGTH, empty="zero")
    is_rating = learner.objective.is_rating
    return Quality(
        rmse=_double(rmse(found, cells.values) if is_rating else math.nan),
        accuracy=_double(math.nan if is_rating else sign_accuracy(found, relevant)),
        ap=ap.nanmean(),
        ndcg=gain.nanmean(),
        cells=torch.tensor(len(cells)),
        rows=(cells.columns.lengths > 0).sum(),
        held=Held(learner.data.domain.rows[cells.rows], cells.values, scores, relevant)
        if pooled
        else None,
    )


def _double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)
