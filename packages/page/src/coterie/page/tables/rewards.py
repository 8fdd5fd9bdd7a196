"""Figure 2: accuracy and reward of PAGE side by side, and what the players choose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from coterie.core.tables.curves import mean_curve
from coterie.core.tables.plots import Curves
from coterie.core.tables.report import Report
from coterie.core.tables.result import NAN, RunResult, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.page.tables.layout import add_accuracies
from coterie.page.tables.main_table import rest_notes
from coterie.page.tables.runs import GLOBAL, LOCAL
from coterie.page.tables.study import Study

_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("test accuracy", {"global": f"test/{GLOBAL}", "local": f"test/{LOCAL}"}),
    ("reward", {"server": "page/reward_server", "clients": "page/reward_clients"}),
    ("learning rate η", {"mean of clients": "page/lr"}),
    ("local epochs α", {"mean of clients": "page/epochs"}),
    ("entropy of p", {"p": "page/weights_entropy"}),
)
_PAIRS = {
    "global": (f"test/{GLOBAL}", "page/reward_server"),
    "local": (f"test/{LOCAL}", "page/reward_clients"),
}
_SHOWN = 10  # rounds in the table


def reward_figure(study: Study) -> Report:
    """Draw Figure 2 for the study's task."""
    results = study.methods("Figure 2", study.settings, (study.own,))[study.own]
    panels: list[Curves] = []
    for label, lines in _PANELS:
        found = {
            name: mean_curve(results, lambda run, key=key: run.curve(key))  # type: ignore[misc]
            for name, key in lines.items()
            if any(known(run.curve(key)) for run in results if run.rounds)
        }
        if found:
            panels.append(Curves("round", label, found, legend=len(found) > 1))
    sheet = Sheet(
        study,
        *study.setup,
        "Means over seeds, bands of one standard deviation; a run that has come to rest stays "
        "where it was. Rewards are the players' utilities (the share of each in the objective, "
        "where they are biased, is not applied).",
        *trend_notes(results),
        *rest_notes(results),
    )
    add_accuracies(sheet, study.own, results)
    names = {f"{label}, {name}": key for label, part in _PANELS for name, key in part.items()}
    longest = max(run.rounds for run in results)
    # Some rounds of the curves, for people.
    for number in sorted({round(n) for n in np.linspace(1, longest, min(_SHOWN, longest))}):
        line, left = sheet.line(round=number), [run for run in results if run.rounds >= number]
        for label, key in names.items():
            line[label] = cell([run.curve(key)[number - 1] for run in left])
    return sheet.report("Figure 2", "accuracy and reward of PAGE", panels, columns=2)


def trend_notes(results: Sequence[RunResult]) -> list[str]:
    """Say how accuracy and reward go together over the rounds, by Spearman's rank correlation."""
    notes = []
    for column, (accuracy, reward) in _PAIRS.items():
        found = [correlation(run.curve(accuracy), run.curve(reward)) for run in results]
        said = known(found)
        if said:
            notes.append(
                f"Rank correlation over the rounds of {column} accuracy and the reward of "
                f"{'the server' if column == 'global' else 'the clients'}: {cell(said, digits=2)}."
            )
    return notes


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation where both are known; NaN for fewer than 3, or a constant."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    both = ~(np.isnan(a) | np.isnan(b))
    a, b = a[both], b[both]
    if len(a) < 3 or not np.ptp(a) or not np.ptp(b):
        return NAN
    return float(stats.spearmanr(a, b).statistic)
