"""Table 1: MTAL, joint and separate models, and what needs no training, in two readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.assisted.readings import MODELS, PATIENCE
from coterie.assisted.settings import UNTRAINED
from coterie.assisted.tables.rows import (
    BEST,
    ORDER,
    OURS,
    OWN,
    RATES,
    Row,
    baselines,
    ceilings,
    own_rows,
    rate_of,
    released_rows,
)
from coterie.assisted.tables.study import Cell, Study
from coterie.core.style import Roles, better_of
from coterie.core.tables.dots import Differences
from coterie.core.tables.latex import Better
from coterie.core.tables.paired import Comparison, Contrast, contrasts
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Line, Sheet

# The runs of Table 1, by reading and cell.


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
            if reading == "released":
                own = released_rows(tuned)
            else:
                own = ceilings(cell, tuned, study.best(cell, reading))
                own += own_rows(tuned, study.variants(cell, reading))
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


_TOLD = ("alone-bias", "rate", "alone-aae", "joint-aae")


def against_others(part: Part) -> dict[str, Contrast]:
    """Compare MTAL with every method that is not ours; by the name of the row."""
    return _against(part, [name for name in part.rows if name not in OURS])


def against_ours(part: Part) -> dict[str, Contrast]:
    """Compare MTAL with its own variants."""
    return _against(part, [name for name in part.rows if name in OURS or name == OWN])


def against_best(part: Part) -> dict[str, Contrast]:
    """Compare ``--variant best`` with every other row; nothing where it is not asked for."""
    if BEST not in part.rows:
        return {}
    values = {name: part.test(name) for name in part.rows}
    return contrasts(values, BEST, higher=part.cell.higher)


def difference_notes(part: Part) -> list[str]:
    """Write out the tests of a cell: MTAL against the others and its variants, the best one."""
    notes = []
    tests = ("MTAL", against_others), ("MTAL", against_ours), (OURS[BEST], against_best)
    for who, against in tests:
        found = against(part)
        if not found:
            continue
        said = [f"{_named(part, one).text()}, {one.verdict}" for one in found.values()]
        n = next(iter(found.values())).found.n
        how = f"Paired t-test over {n} seeds, 95 % interval, Holm over these"
        notes.append(
            f"{part.reading}, {part.cell.label}, {who} minus: {'; '.join(said)}. "
            f"{how if n > 1 else 'One seed cannot be tested'}."
        )
    return notes


def standing_notes(parts: Sequence[Part]) -> list[str]:
    """Say plainly in how many cells MTAL is better than what matters most; of one reading."""
    said = []
    for name in _TOLD:
        found = [against_others(part)[name] for part in parts if name in part.rows]
        if not found:
            continue
        better = sum((one.found.difference > 0) == one.higher for one in found)
        sure = sum(one.verdict == "better" for one in found)
        label = next(part.rows[name].label for part in parts if name in part.rows)
        said.append(f"{label} in {better} of {len(found)} (significantly {sure})")
    return [f"{parts[0].reading}: MTAL is better by the means than {', '.join(said)} columns."]


def panels(parts: Sequence[Part]) -> list[Differences]:
    """Draw what MTAL, or ``--variant best``, has over the others: a plot by reading and metric."""
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.reading, part.cell.short), []).append(part)
    return [
        Differences(
            f"{_drawn(group[0])[0]} minus it, {metric}",
            {part.cell.organisations: _comparisons(part) for part in group},
            title=f"{reading} reading",
            roles=Roles(better=better_of(group[0].cell.higher)),
        )
        for (reading, metric), group in groups.items()
    ]


def _against(part: Part, names: Sequence[str]) -> dict[str, Contrast]:
    values = {name: part.test(name) for name in names}
    return contrasts(values, OWN, higher=part.cell.higher)


def _named(part: Part, found: Contrast) -> Contrast:
    return Contrast(part.rows[found.other].label, found.found, found.p, found.higher)


def _drawn(part: Part) -> tuple[str, dict[str, Contrast]]:
    """Whose differences are drawn, and these."""
    best = against_best(part)
    return (OURS[BEST], best) if best else ("MTAL", against_others(part))


def _comparisons(part: Part) -> dict[str, Comparison]:
    return {part.rows[name].label: one.found for name, one in _drawn(part)[1].items()}


_MEASURED = {
    "explicit": "RMSE of explicit feedback (lower is better)",
    "implicit": "MAP@10 of implicit feedback (higher is better)",
}
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
    what = ", ".join(dict.fromkeys(_MEASURED[part.cell.feedback] for part in parts))
    better: Better = {
        part.cell.label: "min" if "rmse" in part.cell.metric else "max" for part in parts
    }
    return sheet.report(
        "Table 1", what, panels(parts), columns=1, better=better, within=("reading",)
    )


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
    known = not with_side and name not in OURS and row.model in MODELS
    paper = cell.printed(sheet.study.data, row.method, row.model) if known else None
    where = {**cell.names, "reading": part.reading}
    if row.settings.method == OWN:  # not a variant that is another method
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
