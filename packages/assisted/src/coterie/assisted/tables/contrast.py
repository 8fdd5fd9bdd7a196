"""How MTAL compares with the others in a cell: tests paired over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.assisted.tables.parts import Part
from coterie.assisted.tables.rows import OURS, OWN
from coterie.core.tables.contrast import Contrast, contrasts
from coterie.core.tables.paired import Comparison
from coterie.core.tables.plots import Differences

_TOLD = ("alone-bias", "rate", "alone-aae", "joint-aae")


def against_others(part: Part) -> dict[str, Contrast]:
    """Compare MTAL with every method that is not ours; by the name of the row."""
    return _against(part, [name for name in part.rows if name not in OURS])


def against_ours(part: Part) -> dict[str, Contrast]:
    """Compare MTAL with its own variants."""
    return _against(part, [name for name in part.rows if name in OURS or name == OWN])


def difference_notes(part: Part) -> list[str]:
    """Write out the tests of a cell, one line for the others and one for the variants."""
    notes = []
    for found in (against_others(part), against_ours(part)):
        if not found:
            continue
        said = [f"{_named(part, one).text()}, {one.verdict}" for one in found.values()]
        n = next(iter(found.values())).found.n
        how = f"Paired t-test over {n} seeds, 95 % interval, Holm over these"
        notes.append(
            f"{part.reading}, {part.cell.label}, MTAL minus: {'; '.join(said)}. "
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
    """Draw what MTAL has over the others: a plot for each reading and metric."""
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.reading, part.cell.short), []).append(part)
    return [
        Differences(
            f"{reading}: MTAL minus it, {metric}",
            {part.cell.organisations: _comparisons(part) for part in group},
        )
        for (reading, metric), group in groups.items()
    ]


def _against(part: Part, names: Sequence[str]) -> dict[str, Contrast]:
    values = {name: part.test(name) for name in names}
    return contrasts(values, OWN, higher=part.cell.higher)


def _named(part: Part, found: Contrast) -> Contrast:
    return Contrast(part.rows[found.other].label, found.found, found.p, found.higher)


def _comparisons(part: Part) -> dict[str, Comparison]:
    return {part.rows[name].label: one.found for name, one in against_others(part).items()}
