"""Figures 2 and 3: accuracy beside reward, and what each of the three factors contributes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from coterie.core.settings.schema import changed
from coterie.core.tables.means import mean_curve
from coterie.core.tables.paired import contrasts
from coterie.core.tables.plots import Curves
from coterie.core.tables.report import Report
from coterie.core.tables.result import NAN, RunResult, at_best, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.page.settings import Settings
from coterie.page.tables.layout import (
    accuracies,
    add_accuracies,
    comparison_notes,
    four_panels,
    plain,
)
from coterie.page.tables.main_table import rest_notes
from coterie.page.tables.study import COLUMNS, GLOBAL, LOCAL, Study

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
            panels.append(Curves("round", label, found))
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


# Figure 3: what each of the three factors η, α and p contributes to PAGE.

ALL, NONE = "η, α, p", "none"
FACTORS = {"η": "tune_lr", "α": "tune_epochs", "p": "tune_p"}
VARIANTS = (NONE, "η", "α", "p", "η, α", "η, p", "α, p", ALL)
_CLAIMS = {"global": ("p",), "local": ("η", "α", "η, α")}
_NOTES = (
    "Test accuracy of the round that is best on validation data, mean ± standard deviation over "
    "seeds. A factor that is not chosen stays what FedAvg has: η = train.lr, α = train.epochs, "
    "p = 1/N. none is FedAvg with equal weights.",
)


def ablation_figure(study: Study) -> Report:
    """Draw Figure 3 for the study's task."""
    results = study.run_all("Figure 3", {name: variant(study, name) for name in VARIANTS})
    compared = comparison_notes(results, ALL, f"all three ({ALL})")
    sheet = Sheet(study, *study.setup, *_NOTES, *compared, *claim_notes(results))
    for name, part in results.items():
        add_accuracies(sheet, study.own, part, variant=name)
        line = sheet.line(chosen=name, **accuracies(part, (None, None)))
        line["best round"] = plain([float(run.best_round) for run in part])
        line["steps a round"] = plain([run.total("cost/local_steps") / run.rounds for run in part])
    return sheet.report(
        "Figure 3", "which factors are chosen", four_panels(results, list(results)[-1]), columns=2
    )


def variant(study: Study, name: str) -> Settings:
    """The settings of PAGE in which only the factors that are named are chosen."""
    chosen = set(name.split(", "))
    switches = {f"game.{name}": factor in chosen for factor, name in FACTORS.items()}
    return changed(study.variant(study.own), switches)


def claim_notes(results: Results) -> list[str]:
    """Check the paper's claims: p alone helps the global model, η and α the local ones."""
    notes = []
    for column, names in _CLAIMS.items():
        values = {name: at_best(results[name], COLUMNS[column]) for name in (NONE, *names)}
        for found in contrasts(values, NONE).values():
            p = "unknown" if found.p != found.p else f"p = {found.p:.4f}"
            # The difference is that of none to the variant.
            said = {
                "worse": "as the paper says",
                "better": "the paper says the opposite",
                "not tested": "which so few seeds cannot test",
            }
            notes.append(
                f"Choosing only {found.other} changes {column} accuracy by "
                f"{-100 * found.found.difference:+.2f} points against none (Holm {p}), "
                f"{said.get(found.verdict, 'which is within noise')}."
            )
    return notes
