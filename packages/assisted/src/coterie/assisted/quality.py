"""What an organisation measures on its own held-out cells."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.assisted.messages import Held, Quality
from coterie.assisted.objective import Objective
from coterie.core.data.interactions.cells import Cells

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
    nothing = torch.tensor(torch.nan, dtype=torch.float64)
    rmse = accuracy = nothing
    truth, found = cells.values.double(), scores.double()
    if objective.is_rating and len(cells):
        rmse = (truth - found).square().mean().sqrt()
    elif len(cells):
        accuracy = ((found > 0) == (truth > threshold)).double().mean()
    held = None if names is None else Held(names[cells.rows], cells.values, scores)
    return Quality(
        rmse=rmse,
        accuracy=accuracy,
        ap=nothing,
        ndcg=nothing,
        cells=torch.tensor(len(cells)),
        rows=torch.tensor(0),
        held=held,
    )
