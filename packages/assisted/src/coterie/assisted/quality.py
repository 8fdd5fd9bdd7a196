"""What an organisation measures on its own held-out cells."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.assisted.messages import Held, Quality
from coterie.assisted.objective import Objective
from coterie.core.data.interactions.cells import Cells
from coterie.core.metrics.rated_cells import average_precision, ndcg, rmse, sign_accuracy

LENGTH = 10
"""k of MAP@k and NDCG@k."""


def quality(
    objective: Objective,
    cells: Cells,
    scores: Tensor,
    threshold: float,
    names: Tensor | None,
) -> Quality:
    """Measure scores at held-out cells.

    Args:
        objective: says whether scores are ratings or logits.
        cells: with the true ratings.
        scores: ``(n,)``.
        threshold: ratings above it are relevant.
        names: keyed hashes of the rows, to send ratings and scores along; None for not to.
    """
    relevant, found = cells.values > threshold, scores.double()
    ap = average_precision(found, relevant, cells.columns, LENGTH, empty="zero")
    gain = ndcg(found, relevant, cells.columns, LENGTH, empty="zero")
    is_rating = objective.is_rating
    return Quality(
        rmse=torch.tensor(rmse(found, cells.values) if is_rating else math.nan),
        accuracy=torch.tensor(math.nan if is_rating else sign_accuracy(found, relevant)),
        ap=ap.nanmean(),
        ndcg=gain.nanmean(),
        cells=torch.tensor(len(cells)),
        rows=(cells.columns.lengths > 0).sum(),
        held=None if names is None else Held(names[cells.rows], cells.values, scores),
    )
