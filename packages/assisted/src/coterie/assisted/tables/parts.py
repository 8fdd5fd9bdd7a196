"""The runs of Table 1, by reading and cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.assisted.tables.cells import Cell
from coterie.assisted.tables.rows import OWN, RATES, Row, baselines, own_rows, released_rows
from coterie.assisted.tables.study import Study
from coterie.core.tables.result import RunResult, column


@dataclass(frozen=True)
class Part:
    """What a cell has in a reading.

    Attributes:
        reading: which.
        cell: which.
        rows: name -> its settings and labels.
        results: name -> one run a seed.
    """

    reading: str
    cell: Cell
    rows: Mapping[str, Row]
    results: Mapping[str, Sequence[RunResult]]

    def test(self, name: str) -> list[float]:
        """The test of a row, one value a seed."""
        return column(self.results[name], self.cell.metric)


def measured(study: Study) -> list[Part]:
    """Make all runs, and in the reading released choose the rate of MTAL."""
    plans: dict[tuple[str, Cell], list[Row]] = {}
    for reading in study.readings:
        for cell in study.cells():
            tuned = study.tuned(cell, reading)
            own = released_rows(tuned) if reading == "released" else own_rows(tuned)
            plans[reading, cell] = [*baselines(cell, tuned), *own]
    every = {(*place, row.name): row.settings for place, rows in plans.items() for row in rows}
    found = study.run_all("Table 1", every)
    parts = []
    for place, rows in plans.items():
        results = {row.name: found[*place, row.name] for row in rows}
        parts.append(with_best_rate(Part(*place, {row.name: row for row in rows}, results)))
    return parts


def with_best_rate(part: Part) -> Part:
    """Keep of several rates that with the best mean over seeds, under the name of MTAL."""
    tried = [name for name in RATES if name in part.rows]
    if not tried:
        return part
    choose = max if part.cell.higher else min
    best = choose(tried, key=lambda name: float(np.mean(part.test(name))))
    rows = {name: row for name, row in part.rows.items() if name not in tried}
    results = {name: part.results[name] for name in rows}
    return replace(
        part,
        rows=rows | {OWN: part.rows[best]},
        results=results | {OWN: part.results[best]},
    )
