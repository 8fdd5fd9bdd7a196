"""What the figures share: the summary of a group of runs, and the report with its image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.report import Report
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import Bars, Heat, Lines, plot_panels
from coterie.llm.tables.runs import RunResult
from coterie.llm.tables.study import Study, column, imbalances

Panel = Lines | Bars | Heat
Rows = Sequence[Mapping[str, Any]]


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


def figure_report(
    study: Study,
    which: str,
    title: str,
    tables: tuple[Rows, Rows],
    notes: Sequence[str],
    panels: Sequence[Panel],
) -> Report:
    """Draw panels side by side and put them beside their numbers.

    Args:
        study: names the files.
        which: as "figure4".
        title: the heading.
        tables: rows for programs, and for people.
        notes: lines below.
        panels: of the image.
    """
    file = study.file(which)
    title = f"{title}, {len(study.seeds)} seeds"
    image = plot_panels(panels, title, study.folder / f"{file}.png")
    return Report(file, title, *tables, notes, image)
