"""What the figures share: the summary of a group of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.tables.paired import Spread, spread
from coterie.llm.tables.runs import RunResult
from coterie.llm.tables.study import column, imbalances


def summary(results: Sequence[RunResult], split: str = "test") -> dict[str, str]:
    """Recall@10 and imbalance of the runs of one variant, for people."""
    unequal = imbalances(results, split)
    return {
        f"{split} R@10": str(spread(column(results, f"{split}/recall@10"))),
        "imbalance": f"{np.median(unequal):.2f}",
        "infinite": f"{int(np.isinf(unequal).sum())} of {len(unequal)}",
    }


def finite_spread(values: Sequence[float]) -> Spread:
    """Summarise what is finite."""
    return spread([value for value in values if np.isfinite(value)])
