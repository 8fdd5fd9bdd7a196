"""Table 4, numbers of clients and biased players; Table 6, not the paper's, what λ moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.errors import UserError
from coterie.core.settings.schema import changed
from coterie.core.style import Roles
from coterie.core.tables.dots import Dots
from coterie.core.tables.means import dots
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import SHARE, Lines
from coterie.core.tables.report import Report
from coterie.core.tables.result import at_best, known
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.page import published
from coterie.page.experiment import Experiment
from coterie.page.readings import resolve
from coterie.page.settings import Settings
from coterie.page.tables.layout import accuracies, add_accuracies, comparison, plain
from coterie.page.tables.study import COLUMNS, DECOUPLED, OWN, Study

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


def _panels(clients: Results, ratios: Results) -> list[Dots]:
    groups = {"clients": clients, "global:local reward": ratios}
    return [
        dots(
            "test accuracy",
            {
                name: {column: at_best(part, metric) for column, metric in COLUMNS.items()}
                for name, part in runs.items()
            },
            title=f"by {kind}",
            roles=Roles(better="higher"),
            bounds=SHARE,
        )
        for kind, runs in groups.items()
        if runs
    ]


# Table 6, not the paper's: what λ of the reading decoupled moves, with and without a branch.

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
    return Lines(
        "λ, weight of the shared objective",
        VALUES,
        lines,
        y_label="test accuracy",
        title=kind,
        roles=Roles(better="higher"),
        bounds=SHARE,
    )
