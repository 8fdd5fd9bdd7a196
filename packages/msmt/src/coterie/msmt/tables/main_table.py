"""Tables 2 to 5: PF-MSMTrec beside networks of one or all scenarios, and federated methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult
from coterie.core.tables.sheet import Sheet
from coterie.msmt.published import ALIEXPRESS, TENREC, reference
from coterie.msmt.tables.contrast import difference_notes, pair_note, panels
from coterie.msmt.tables.layout import NOTE, Printed, add_line, at_own_rounds, papers_note
from coterie.msmt.tables.references import ORACLE
from coterie.msmt.tables.rows import FEDAVG, FEDERATED_ROWS, LOCAL, OWN, ROWS, refused
from coterie.msmt.tables.runs import judged_by
from coterie.msmt.tables.study import Study

_ABOUT = (
    "each alone: a network of its own for every scenario; pooled: one model of all samples in one "
    "place (STAR, AESM² and PEPNet know the scenario, the template does not there); federated: "
    "the template's network, aggregated by the method; what batch normalisation keeps of a "
    "scenario stays with it. FedAvg, own epoch: what each scenario makes of FedAvg's model in a "
    "round. FedAMP, σ relative: in units of the median squared distance; absolute: as printed. "
    "literal: Eqs. 10 and 14 as printed; + embeddings: they are averaged too; server step 10: the "
    "server goes ten times as far along the mean increment of W_s."
)

_PAYS = {
    FEDAVG: "whether averaging pays",
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
            own = made if row.of is None else [judged_by(run, "personal") for run in made]
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
