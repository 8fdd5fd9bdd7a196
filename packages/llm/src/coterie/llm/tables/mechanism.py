"""How strong the two mechanisms of PPLR are: s, p and w over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.llm.tables.runs import RunResult
from coterie.llm.tables.study import Study

PARTS = {
    "pplr/similarity": "s, attention to the peers",
    "pplr/difficulty": "p, difficulty",
    "pplr/warmup": "w, warm-up",
}


_SHOWN = (1, 2, 4, 8)


@dataclass(frozen=True)
class Extent:
    """Of a quantity over clients and seeds in one round.

    Attributes:
        mean: over both.
        low: smallest.
        high: largest.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def extents(results: Sequence[RunResult], name: str) -> list[Extent]:
    """Give mean and range over clients and seeds in every round that some run has."""
    courses = [result.course.get(name, []) for result in results]
    found = []
    for place in range(max(map(len, courses), default=0)):
        values = np.concatenate([course[place] for course in courses if place < len(course)])
        known = values[~np.isnan(values)]
        if known.size:
            found.append(Extent(float(known.mean()), float(known.min()), float(known.max())))
    return found


def mechanism_rows(
    study: Study, backbone: str, results: Sequence[RunResult]
) -> list[dict[str, Any]]:
    """Give s, p and w of every round, in rows for programs."""
    return [
        {
            **study.row("pplr", name, [extent.mean], None, backbone=backbone),
            "round": number,
            "low": extent.low,
            "high": extent.high,
        }
        for name in PARTS
        for number, extent in enumerate(extents(results, name), 1)
    ]


def mechanism_notes(backbone: str, results: Sequence[RunResult]) -> list[str]:
    """Say what s, p and w are: mean (smallest to largest) over clients and seeds.

    Of the rounds `_SHOWN` and the last; `extents` has them all.
    """
    columns = {label[0]: extents(results, name) for name, label in PARTS.items()}
    lines = list(enumerate(zip(*columns.values(), strict=True), 1))
    return [
        f"{backbone}, round {number}: "
        + ", ".join(f"{name} {extent}" for name, extent in zip(columns, line, strict=True))
        for number, line in lines
        if number in _SHOWN or number == len(lines)
    ]
