"""Table 1: MTAL, joint and separate models, and what needs no training, in two readings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.assisted.baselines import PATIENCE
from coterie.assisted.settings.run import UNTRAINED
from coterie.assisted.tables.contrast import (
    against_others,
    against_ours,
    difference_notes,
    panels,
    standing_notes,
)
from coterie.assisted.tables.parts import Part, measured
from coterie.assisted.tables.rows import ORDER, OURS, OWN, rate_of
from coterie.assisted.tables.study import Study
from coterie.core.tables.contrast import Contrast
from coterie.core.tables.report import Report
from coterie.core.tables.result import column
from coterie.core.tables.sheet import Line, Sheet

ABOUT = {
    "recommended": "recommended: 80 % of the ratings to train on, 10 % to choose by, 10 % to test "
    f"once. The round (MTAL) or epoch (others, which wait {PATIENCE} epochs for a better one) is "
    "the best on validation; RMSE is of all test cells, MAP@10 the mean over users (or items).",
    "released": "released, the protocol of the slides: 90 % to train on, the best round or epoch "
    "on the test itself, metrics averaged by batches, ratings of 3.5 positive, and MTAL with the "
    "best of three rates, on the test again. Its numbers are too good by that choice.",
    "literal": "literal: as printed; chosen on validation, metrics over all cells and rows.",
}
_NOTES = (
    "Mean ± standard deviation over seeds. A ranking is of all that is held out of a user (or "
    "item), whoever holds it; the test is the same for all rows of a seed. Joint: one model of all "
    "ratings, whatever the partition. Alone: a model for each organisation.",
    "The bias model (mean + user + item) and the smoothed rate, (positives + 1) / (ratings + 2) of "
    "an item (or user), need neither peers nor training. Rows marked ours are options of this "
    "package.",
)
_SIDE = (
    "_s: with side information, profiles of users and genres of items. The slides have no numbers "
    "of it. Without it: the same table without data.side."
)


def main_table(study: Study) -> Report:
    """Reproduce the slides' table for the study's data set."""
    parts = measured(study)
    first = parts[0].rows[OWN].settings
    sheet = Sheet(study, study.setup(first), *(ABOUT[reading] for reading in study.readings))
    sheet.notes += [*_NOTES, *([_SIDE] if first.data.side else [])]
    for reading in study.readings:
        of_reading = [part for part in parts if part.reading == reading]
        _add_lines(sheet, of_reading)
        sheet.notes += chosen_notes(of_reading) + standing_notes(of_reading)
        sheet.notes += [note for part in of_reading for note in difference_notes(part)]
    what = "RMSE of explicit feedback (lower is better), MAP@10 of implicit (higher)"
    return sheet.report("Table 1", what, panels(parts), columns=2)


def chosen_notes(parts: Sequence[Part]) -> list[str]:
    """Say which rate MTAL has in each cell; of one reading."""
    said = [f"{part.cell.label}: {rate_of(part.rows[OWN].settings)}" for part in parts]
    how = "the best of three on the test" if parts[0].reading == "released" else "as configured"
    return [f"{parts[0].reading}: MTAL's rate ({how}): {'; '.join(said)}."]


def _add_lines(sheet: Sheet[Study], parts: Sequence[Part]) -> None:
    """Add the lines of a reading, a column for each cell."""
    labels = {name: row.label for part in parts for name, row in part.rows.items()}
    tests = {part.cell: against_others(part) | against_ours(part) for part in parts}
    for name in ORDER:
        if name not in labels:
            continue
        line = sheet.line(reading=parts[0].reading, method=labels[name])
        for part in parts:
            if name in part.rows:
                _add(sheet, line, part, name, tests[part.cell].get(name))
            else:
                line[part.cell.label] = "-"


def _add(sheet: Sheet[Study], line: Line, part: Part, name: str, tested: Contrast | None) -> None:
    """Add a test to a line, and what else is known of the runs for programs."""
    cell, row, runs = part.cell, part.rows[name], part.results[name]
    with_side = row.settings.data.side and row.model not in UNTRAINED
    known = not with_side and name not in OURS
    paper = cell.printed(sheet.study.data, row.method, row.model) if known else None
    where = {**cell.names, "reading": part.reading}
    if row.method == OWN:
        where["setting"] = rate_of(row.settings)
    below: dict[str, Any] = {}
    if tested is not None:
        below = {"mtal_minus_it": tested.found.difference, "p": tested.p}
    sheet.cell(line, cell.label, name, cell.metric, part.test(name), paper, **where, **below)
    more = {"best_round": column(runs, "test/best_round")}
    more["rounds"] = [float(run.rounds) for run in runs]
    for cost in ("cost/cpu_seconds", "cost/up_bytes"):
        more[cost] = [run.total(cost) for run in runs]
    for metric, numbers in more.items():
        sheet.row(name, metric, numbers, **where)
