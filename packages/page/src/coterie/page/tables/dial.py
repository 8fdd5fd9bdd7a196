"""Table 6, not the paper's: what λ of the reading decoupled moves, with and without a branch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.settings.schema import changed
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines
from coterie.core.tables.report import Report
from coterie.core.tables.result import at_best, known
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.page.readings import resolve
from coterie.page.settings.run import Settings
from coterie.page.tables.contrast import comparison
from coterie.page.tables.layout import accuracies, add_accuracies, plain
from coterie.page.tables.properties import moved_note
from coterie.page.tables.runs import COLUMNS
from coterie.page.tables.study import DECOUPLED, Study

VALUES = (0.0, 0.25, 0.5, 0.75, 1.0)
KINDS = {"own model as sent": False, "own model a branch": True}
"""What is measured as a client's own model -> whether it keeps a branch."""
MIDDLE = "λ = 0.5"
PROMISED_BY_DIAL = {"λ = 0": {"global": -1, "local": 1}, "λ = 1": {"global": 1, "local": -1}}
"""Signs of the changes against the middle, where a client's own model is the one that it sends."""
_NOTE = (
    "Test accuracy of the round that is best on validation data, mean ± standard deviation over "
    "seeds. λ (game.generality) is the weight of the shared objective in the gradient of what "
    "clients send, {drift}. A client's own model is that model, or a branch that is never "
    "sent and takes no part in the trade."
)
_DRIFT = {
    "dynamic": "g(w) + λ(α(w - W) - h_i), α = {alpha:g} (game.drift dynamic)",
    "control": "g + λ(c - c_i) (game.drift control)",
}


def dial_table(study: Study) -> Report:
    """Measure both columns at every λ, for both kinds of a client's own model."""
    variants = {
        (kind, value): variant(study, value, branch)
        for kind, branch in KINDS.items()
        for value in VALUES
    }
    found = study.run_all("Table 6", variants)
    game = resolve(variant(study, 1.0, True)).game
    drift = _DRIFT[str(game.drift)].format(alpha=game.alpha or 0.0)
    sheet, groups = Sheet(study, *study.setup, _NOTE.format(drift=drift)), {}
    for (kind, value), part in found.items():
        add_accuracies(sheet, DECOUPLED, part, kind=kind, generality=value)
        line = sheet.line(**{"λ": f"{value:g}", "a client's": kind})
        line |= accuracies(part, (None, None))
        line["best round"] = plain([float(run.best_round) for run in part])
    for kind, branch in KINDS.items():
        groups[kind] = {f"λ = {value:g}": found[kind, value] for value in VALUES}
        sheet.notes += [f"{kind}: {note}" for note in dial_notes(groups[kind], not branch)]
    panels = [dial_panel(kind, results) for kind, results in groups.items()]
    return sheet.report("Table 6", "the weight of the shared objective", panels, columns=2)


def variant(study: Study, generality: float, branch: bool) -> Settings:
    """The study's settings in the reading decoupled, at a λ, with a branch or without."""
    of_row = {"game.generality": generality, "branch.use": branch}
    return changed(study.variant(DECOUPLED), of_row)


def dial_notes(results: Results, promised: bool) -> list[str]:
    """Say which way each column goes with λ, and which steps are more than noise.

    Args:
        results: runs by "λ = …", in ascending order.
        promised: whether the ends should trade one column for the other.
    """
    notes = []
    for column, metric in COLUMNS.items():
        values = {name: at_best(part, metric) for name, part in results.items()}
        notes.append(f"{column} accuracy {direction(list(values.values()))} with λ by the means.")
        if promised:
            for name, signs in PROMISED_BY_DIAL.items():
                notes.append(moved_note(column, name, values[name], values[MIDDLE], signs[column]))
        notes += comparison(results, column, MIDDLE)
    return notes


def direction(steps: Sequence[Sequence[float]]) -> str:
    """Say whether means of one value a seed rise, fall, or do neither, from step to step.

    Example:
        >>> direction([[0.1, 0.3], [0.4], [0.5]]), direction([[1.0], [0.0], [2.0]])
        ('rises', 'neither rises nor falls steadily')
    """
    moves = np.diff([float(np.mean(values)) for values in steps])
    if (moves > 0).all():
        return "rises"
    return "falls" if (moves < 0).all() else "neither rises nor falls steadily"


def dial_panel(kind: str, results: Results) -> Lines:
    """Draw both columns over λ for one kind of a client's own model."""
    lines = {
        column: [spread(known(at_best(part, metric))) for part in results.values()]
        for column, metric in COLUMNS.items()
    }
    return Lines("λ (game.generality)", VALUES, lines, y_label=f"accuracy, {kind}")
