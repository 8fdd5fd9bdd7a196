"""How strong the two mechanisms of PPLR are: s, p and w over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.tables.result import RunResult
from coterie.core.tables.sheet import Sheet

PARTS = {
    "pplr/similarity": "s, attention to the peers",
    "pplr/difficulty": "p, difficulty",
    "pplr/warmup": "w, warm-up",
}
_SHOWN = (1, 2, 4, 8)


@dataclass(frozen=True)
class Extent:
    """Mean, smallest and largest value of a quantity over clients and seeds in one round."""

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


def add_mechanism(sheet: Sheet[Any], backbone: str, results: Sequence[RunResult]) -> None:
    """Add s, p and w of every round, in rows for programs; and say what some of them are.

    The notes give mean (smallest to largest) over clients and seeds, of the rounds `_SHOWN` and the
    last.
    """
    columns = {name: extents(results, name) for name in PARTS}
    for name, found in columns.items():
        for number, one in enumerate(found, 1):
            more = {"round": number, "low": one.low, "high": one.high}
            sheet.row("pplr", name, [one.mean], backbone=backbone, **more)
    lines = list(enumerate(zip(*columns.values(), strict=True), 1))
    for number, line in lines:
        if number in _SHOWN or number == len(lines):
            said = (f"{label[0]} {one}" for label, one in zip(PARTS.values(), line, strict=True))
            sheet.notes.append(f"{backbone}, round {number}: {', '.join(said)}")
