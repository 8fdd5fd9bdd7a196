"""Table 4: PAGE with other numbers of clients, and biased to either side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.errors import UserError
from coterie.core.settings.schema import changed
from coterie.core.tables.curves import bars
from coterie.core.tables.plots import Bars
from coterie.core.tables.report import Report
from coterie.core.tables.result import at_best
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.page import published
from coterie.page.experiment import Experiment
from coterie.page.settings.run import Settings
from coterie.page.tables.contrast import comparison
from coterie.page.tables.layout import accuracies, add_accuracies, plain
from coterie.page.tables.runs import COLUMNS
from coterie.page.tables.study import DECOUPLED, OWN, Study

CLIENTS = (50, 100, 1000)
NEUTRAL = "1:1"
RATIOS: dict[str, str | None] = {"10:1": "10:1", NEUTRAL: None, "1:10": "1:10"}
"""Name in the table -> the setting; without a ratio everybody has its own utility."""
PROMISED = {"10:1": {"global": 1, "local": -1}, "1:10": {"global": -1, "local": 1}}
"""Signs of the paper's changes against PAGE without a bias."""
_NOTES = (
    "Test accuracy of the round that is best on validation data, mean ± standard deviation over "
    "seeds, the paper's in brackets. rest: the round in which the game came to rest, of the seeds "
    "in which it did.",
    "Ratios are global:local. In 1:1 every player has its own utility; in the others all share "
    "λ·global + (1 - λ)·local (in the reading released each scales its own reward). The reading "
    "decoupled has none; Table 6 has its dial.",
)


def property_table(study: Study) -> Report:
    """Reproduce Table 4 for the study's task: both halves on the same one."""
    counts, notes = _counts(study)
    sheet = Sheet(study, *study.setup, *_NOTES, *notes)
    results = study.run_all("Table 4", _variants(study, counts))
    for (method, kind, name), part in results.items():
        place = ("table4", study.data, kind, name)
        row = published.printed(*place) if method == OWN else None
        papers = (None, None) if row is None else published.accuracies(*place)
        add_accuracies(sheet, method, part, papers, kind=kind, variant=name)
        line = sheet.line(
            method=study.name_of(method), variant=name if kind == "ratio" else f"{name} clients"
        )
        line |= accuracies(part, papers)
        rest = plain([float(run.rounds) for run in part if run.found["settled"]])
        line["rest"] = rest if row is None else f"{rest} ({row[2]})"
        line["best round"] = plain([float(run.best_round) for run in part])
    ratios = {name: part for (_, kind, name), part in results.items() if kind == "ratio"}
    if ratios:
        sheet.notes += bias_notes(ratios)
    clients = {
        f"{name}{'' if method == OWN else ', decoupled'}": part
        for (method, kind, name), part in results.items()
        if kind == "clients"
    }
    panels = _panels(clients, ratios)
    return sheet.report("Table 4", "numbers of clients, and biased players", panels, columns=2)


def _variants(study: Study, counts: Sequence[int]) -> dict[tuple[str, str, str], Settings]:
    """Settings by method, what is changed, and its value."""
    decoupled = study.settings.reading == DECOUPLED
    variants: dict[tuple[str, str, str], Settings] = {}
    for method in (DECOUPLED,) if decoupled else (OWN, DECOUPLED):
        for n in counts:
            # The task's own number of clients, said or not, is one and the same run.
            of_task = {} if n == study.n_clients else {"clients": n}
            variants[method, "clients", str(n)] = study.variant(method, **of_task)
    if not decoupled:
        for name, ratio in RATIOS.items():
            variants[OWN, "ratio", name] = changed(study.variant(), {"game.reward_ratio": ratio})
    return variants


def bias_notes(ratios: Results) -> list[str]:
    """Say whether the biased players move the accuracies as promised, beyond the seeds' spread.

    A change of a mean is beyond the spread if it is more than the larger standard deviation over
    seeds of the two variants.
    """
    notes = []
    for column, metric in COLUMNS.items():
        values = {name: at_best(part, metric) for name, part in ratios.items()}
        for name, signs in PROMISED.items():
            notes.append(moved_note(column, name, values[name], values[NEUTRAL], signs[column]))
        notes += comparison(ratios, column, NEUTRAL)
    return notes


def moved_note(
    column: str, name: str, biased: Sequence[float], neutral: Sequence[float], sign: int
) -> str:
    """Say whether a variant moves a column by the sign promised, beyond the seeds' spread.

    Args:
        column: its name.
        name: of the variant.
        biased: its values, one a seed.
        neutral: those of what it is compared with.
        sign: 1 where it should go up, -1 where down.
    """
    change = float(np.mean(biased) - np.mean(neutral))
    wanted = "up" if sign > 0 else "down"
    text = f"{name} should move {column} accuracy {wanted}: it moves by {100 * change:+.2f} points"
    if len(biased) < 2:
        return f"{text}; one seed has no spread to compare with."
    spread = max(float(np.std(values, ddof=1)) for values in (biased, neutral))
    beyond = abs(change) > spread
    if beyond and change * sign > 0:
        said = "as promised, beyond"
    elif beyond:
        said = "against the promise, beyond"
    else:
        said = "NOT beyond"
    return f"{text}, {said} the seeds' spread ({100 * spread:.2f})."


def _counts(study: Study) -> tuple[list[int], list[str]]:
    """Numbers of clients that the task can be shared among, and what to say of the others."""
    base = study.settings.data.clients
    notes: list[str] = []
    wanted: Sequence[int] = CLIENTS
    if "data.clients" in study.configuration.given.flags and base is not None:
        wanted = tuple(dict.fromkeys((max(base // 2, 1), base, 10 * base)))
        notes.append(f"Half of, as many as and ten times the {base} clients that were asked for.")
    counts = []
    for count in wanted:
        try:
            counts.append(len(Experiment(study.variant(clients=count)).task.clients))
        except UserError as error:
            notes.append(f"Not with {count} clients: {error}")
    return counts, notes


def _panels(clients: Results, ratios: Results) -> list[Bars]:
    groups = {"clients": clients, "global:local reward": ratios}
    return [
        bars(
            f"accuracy, by {kind}",
            {
                name: {column: at_best(part, metric) for column, metric in COLUMNS.items()}
                for name, part in runs.items()
            },
        )
        for kind, runs in groups.items()
        if runs
    ]
