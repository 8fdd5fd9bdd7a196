"""The area under the ROC curve."""

from __future__ import annotations

import torch
from torch import Tensor


def auc(score: Tensor, label: Tensor) -> Tensor:
    """Area under the ROC curve, ties counted half; NaN with a NaN score, or one class only.

    By ranks (Mann and Whitney), exact in float64: torchmetrics' is in float32, and its import takes
    a second of a scenario's process.

    Args:
        score: ``(n,)``.
        label: ``(n,)`` 0 or 1.

    Returns:
        ``()`` float64.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4]), torch.tensor([0, 0, 1])).item()
        0.75
    """
    positive = int(label.sum())
    if not 0 < positive < len(label) or bool(score.isnan().any()):  # `unique` would rank NaN
        return torch.tensor(torch.nan, dtype=torch.float64)
    _, place, counts = score.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[place]
    above = ranks[label > 0].sum() - positive * (positive + 1) / 2
    return above / (positive * (len(label) - positive))
