"""Figure 3: what each of the three factors η, α and p contributes to PAGE."""

from __future__ import annotations

from coterie.core.settings.schema import changed
from coterie.core.tables.contrast import contrasts
from coterie.core.tables.report import Report
from coterie.core.tables.result import at_best
from coterie.core.tables.sheet import Sheet
from coterie.core.tables.study import Results
from coterie.page.settings.run import Settings
from coterie.page.tables.contrast import comparison_notes
from coterie.page.tables.layout import accuracies, add_accuracies, four_panels, plain
from coterie.page.tables.runs import COLUMNS
from coterie.page.tables.study import Study

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
    return sheet.report("Figure 3", "which factors are chosen", four_panels(results), columns=2)


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
