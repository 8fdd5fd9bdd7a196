"""How PF-MSMTrec compares with the other rows in a world: tests paired over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coterie.core.tables.contrast import Contrast, contrasts
from coterie.core.tables.paired import compare, holm
from coterie.core.tables.plots import Differences
from coterie.core.tables.result import RunResult
from coterie.msmt.tables.layout import AUC, measured

Table = Mapping[str, Mapping[str, Sequence[RunResult]]]
"""World -> label of a row -> runs, one a seed."""
Measure = Callable[[Sequence[RunResult]], list[float]]
"""A number of each run."""
_VERDICTS = {
    "better": "better than",
    "worse": "worse than",
    "within noise": "not to be told from",
    "not tested": "untested beside",
}


def _mean_auc(results: Sequence[RunResult]) -> list[float]:
    return measured(results, AUC)


def against(rows: Mapping[str, Sequence[RunResult]], own: str) -> dict[str, Contrast]:
    """Compare one row's mean AUC with each of the others."""
    return contrasts({label: _mean_auc(results) for label, results in rows.items()}, own)


def difference_notes(table: Table, own: str) -> list[str]:
    """Write out the tests, a line for each world, by what they say."""
    return [_difference_note(world, against(rows, own), own) for world, rows in table.items()]


def pair_note(table: Table, first: str, second: str, why: str, measure: Measure = _mean_auc) -> str:
    """Compare two rows in every world; Holm's adjustment is over the worlds.

    Args:
        table: the runs.
        first: label of a row.
        second: label of what is subtracted.
        why: what the comparison tells.
        measure: what is compared.
    """
    found = {
        world: compare(measure(rows[first]), measure(rows[second])) for world, rows in table.items()
    }
    adjusted = holm([one.p for one in found.values()])
    said = [
        Contrast(world, one, p).text(digits=2, scale=100)
        for (world, one), p in zip(found.items(), adjusted, strict=True)
    ]
    return f"{first} minus {second}, in points ({why}): {'; '.join(said)}."


def panels(table: Table, own: str) -> list[Differences]:
    """Draw what one row has over the others, a plot for each world."""
    return [
        Differences(
            f"{own} minus it, test AUC",
            {world: {label: one.found for label, one in against(rows, own).items()}},
        )
        for world, rows in table.items()
    ]


def _difference_note(world: str, found: Mapping[str, Contrast], own: str) -> str:
    said = []
    for verdict, words in _VERDICTS.items():
        group = [one.text(digits=2, scale=100) for one in found.values() if one.verdict == verdict]
        if group:
            said.append(f"{words} {', '.join(group)}")
    n = next(iter(found.values())).found.n if found else 0
    how = f"Paired t-test over {n} seeds, 95 % interval, Holm over these."
    how = how if n > 1 else "One seed cannot be tested."
    return f"{world}, test AUC (mean of tasks), {own} minus, in points: {'; '.join(said)}. {how}"
