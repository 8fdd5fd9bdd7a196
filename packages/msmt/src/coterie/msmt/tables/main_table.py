"""Tables 2 to 5: PF-MSMTrec beside networks and federated methods; Figure 3, its convergence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie.core.style import Roles
from coterie.core.tables.means import mean_curve
from coterie.core.tables.plots import SHARE, Curves
from coterie.core.tables.report import Report
from coterie.core.tables.result import NAN, RunResult, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.msmt.published import ALIEXPRESS, TENREC, reference
from coterie.msmt.tables.layout import (
    AUC,
    NOTE,
    Printed,
    add_line,
    at_own_rounds,
    difference_notes,
    pair_note,
    panels,
    papers_note,
)
from coterie.msmt.tables.rows import (
    ENSEMBLE,
    FEDAVG,
    FEDERATED_ROWS,
    LOCAL,
    OWN,
    ROWS,
    TUNED,
    refused,
)
from coterie.msmt.tables.study import ORACLE, WHOSE, Study, judged_by

_ABOUT = (
    "each alone: a network of its own for every scenario; pooled: one model of all samples in one "
    "place (STAR, AESM² and PEPNet know the scenario, the template does not there); federated: "
    "the template's network, where no other is named, aggregated by the method; what batch "
    "normalisation keeps of a scenario stays with it. FedAvg, own epoch: what each scenario makes "
    "of FedAvg's model in a round; fine-tuned: trained on from its best round, epochs and rate by "
    "own validation samples; mixed: that and Local, logits weighted by the same samples. FedAMP, "
    "σ relative: in units of the median squared distance; absolute: as printed. literal: "
    "Eqs. 10 and 14 as printed; + embeddings: they are averaged too; server step 10: the "
    "server goes ten times as far along the mean increment of W_s."
)

_PAYS = {
    FEDAVG: "whether averaging pays",
    "fedavg-own": "whether an own epoch pays",
    TUNED: "whether fine-tuning pays",
    ENSEMBLE: "whether the mix pays",
    "ditto": "whether Ditto pays",
    "fedamp": "whether FedAMP pays",
    OWN: "whether the method's federation pays",
    "pf-embeddings": "whether it pays with embeddings",
    "pf-server-lr": "whether it pays with a larger step",
}
"""Rows that are compared with training alone, and what that tells."""


@dataclass(frozen=True)
class _Paper:
    """A table of the paper: its number, data, scenarios, and which rows it has."""

    which: str
    data: str
    scenarios: tuple[str, ...]
    rows: tuple[str, ...] = tuple(ROWS)


def table_2(study: Study) -> Report:
    """Reproduce Table 2: all methods; the paper's are of AliExpress."""
    return _table(study, _Paper("Table 2", "AliExpress", ALIEXPRESS))


def table_3(study: Study) -> Report:
    """Reproduce Table 3: the federated ones."""
    return _table(study, _Paper("Table 3", "AliExpress", ALIEXPRESS, FEDERATED_ROWS))


def table_4(study: Study) -> Report:
    """Reproduce Table 4, which is Table 2 of Tenrec."""
    return _table(study, _Paper("Table 4", "Tenrec", TENREC))


def table_5(study: Study) -> Report:
    """Reproduce Table 5, which is Table 3 of Tenrec."""
    return _table(study, _Paper("Table 5", "Tenrec", TENREC, FEDERATED_ROWS))


def _table(study: Study, paper: _Paper) -> Report:
    reasons = {name: refused(ROWS[name], study.settings, study.task) for name in paper.rows}
    names = [name for name, reason in reasons.items() if reason is None]
    found = results(study, paper.which, names)
    sheet = Sheet(study, study.setup, NOTE, _ABOUT, papers_note(study, paper.data))
    for name in names:
        row = ROWS[name]
        of_row = {world: runs[row.label] for world, runs in found.items()}
        labels = {"method": row.label, "models": row.models}
        add_line(sheet, labels, name, of_row, printed(paper.scenarios, row.paper))
    _add_oracle(sheet, paper.which)
    own, alone = ROWS[OWN].label, ROWS[LOCAL].label
    sheet.notes += difference_notes(found, own)
    for name in (name for name in _PAYS if name in names):
        sheet.notes.append(pair_note(found, ROWS[name].label, alone, _PAYS[name]))
        if name != FEDAVG:  # whose model is one for all
            why = f"{_PAYS[name]}; each scenario at its own best round of validation"
            sheet.notes.append(pair_note(found, ROWS[name].label, alone, why, at_own_rounds))
    sheet.notes += [
        f"Left out: {ROWS[name].label}: {reason}" for name, reason in reasons.items() if reason
    ]
    return sheet.report(paper.which, "test AUC", panels(found, own), columns=3)


def results(
    study: Study, title: str, names: Iterable[str]
) -> dict[str, dict[str, Sequence[RunResult]]]:
    """Run rows in every world; world -> label -> runs."""
    runs = study.run_all(
        title,
        {
            (world, ROWS[name].of or name): ROWS[ROWS[name].of or name].settings(settings)
            for world, settings in study.worlds.items()
            for name in names
        },
    )
    found: dict[str, dict[str, Sequence[RunResult]]] = {world: {} for world in study.worlds}
    for world, rows in found.items():
        for name in names:
            row = ROWS[name]
            made = runs[world, row.of or name]
            own = made if row.of is None else [judged_by(run, row.whose) for run in made]
            rows[row.label] = own
    return found


def printed(scenarios: Iterable[str], row: str | None) -> Printed:
    """Give the paper's numbers of a row by scenario; nothing where it has none."""
    found = {name: reference(name, row) for name in scenarios} if row else {}
    return {name: numbers for name, numbers in found.items() if numbers}


def _add_oracle(sheet: Sheet[Study], title: str) -> None:
    study = sheet.study
    if study.task.truth is None:
        return
    found = study.references_of(title, ORACLE)
    labels = {"method": "true probabilities", "models": "-"}
    add_line(sheet, labels, ORACLE, found, {})


# Figure 3: convergence of PF-MSMTrec beside FedAvg.

SHOWN = (OWN, FEDAVG, "fedavg-own", "pf-embeddings", "pf-server-lr", LOCAL)
NEAR = 0.005
_ABOUT_FIGURE = (
    "Validation AUC, mean over tasks and scenarios, after each round; mean over seeds, bands of "
    "one standard deviation. The paper draws its method and FedAvg on the test, without numbers. "
    f"near: the first round within {100 * NEAR:g} points of the method's own best."
)


def convergence_figure(study: Study) -> Report:
    """Draw Figure 3 for the study's worlds."""
    found = results(study, "Figure 3", SHOWN)
    sheet = Sheet(study, study.setup, _ABOUT_FIGURE)
    for name in SHOWN:
        line = sheet.line(method=ROWS[name].label)
        for world, rows in found.items():
            runs = rows[ROWS[name].label]
            near = [float(reached(run, max(known(curve(run))) - NEAR)) for run in runs]
            best = [max(known(curve(run))) for run in runs]
            sheet.row(name, f"eval/{AUC}", best, world=world)
            sheet.row(name, "round_near_best", near, world=world)
            line[f"{world}: best"], line[f"{world}: near"] = cell(best), cell(near, digits=1)
    panels = [_panel(world, rows) for world, rows in found.items()]
    return sheet.report("Figure 3", "convergence", panels)


def curve(run: RunResult) -> Sequence[float]:
    """Validation AUC round by round, of the models that the method is judged by."""
    return run.curve(f"eval/{run.found[WHOSE]}_{AUC}")


def reached(run: RunResult, target: float) -> float:
    """The first round whose validation AUC is the target or more; NaN if none is."""
    found = (number for number, value in enumerate(curve(run), 1) if value >= target)
    return next(found, NAN)


def _panel(world: str, rows: Results) -> Curves:
    drawn = {label: mean_curve(runs, curve) for label, runs in rows.items()}
    own = Roles(ROWS[OWN].label, better="higher")
    return Curves("round", "validation AUC", drawn, title=world, roles=own, bounds=SHARE)
