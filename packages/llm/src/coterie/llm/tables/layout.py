"""What the figures share: the summary of a group of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import cell
from coterie.llm.tables.runs import imbalances


def summary(results: Sequence[RunResult], split: str = "test") -> dict[str, str]:
    """Recall@10 and imbalance of the runs of one variant, for people."""
    recall = cell(column(results, f"{split}/recall@10"))
    return {f"{split} R@10": recall, **inequality(imbalances(results, split))}


def inequality(unequal: Sequence[float], paper: float | None = None) -> dict[str, str]:
    """Median imbalance of one value a seed, the paper's beside it, and how many are infinite.

    Example:
        >>> inequality([0.5, float("inf"), 0.7], 4.5)
        {'imbalance': '0.70 (4.50)', 'infinite': '1 of 3'}
    """
    printed = f" ({paper:.2f})" if paper is not None and paper == paper else ""
    return {
        "imbalance": f"{np.median(unequal):.2f}{printed}",
        "infinite": f"{int(np.isinf(unequal).sum())} of {len(unequal)}",
    }
