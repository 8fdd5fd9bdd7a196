"""Tables 7 and 9: how many experts."""

from __future__ import annotations

from coterie.core.settings.schema import changed
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet
from coterie.msmt.published import ALIEXPRESS, EXPERTS, TENREC, of_experts
from coterie.msmt.tables.contrast import difference_notes
from coterie.msmt.tables.layout import NOTE, add_line, measured, papers_note
from coterie.msmt.tables.rows import OWN
from coterie.msmt.tables.study import Study

USUAL = 4
_ABOUT_EXPERTS = (
    "Experts: as many as the row says. The paper takes four, which are tested against the others "
    "below."
)


def table_7(study: Study) -> Report:
    """Reproduce Table 7; the paper's numbers are of AliExpress."""
    return _expert_table(study, "Table 7", "AliExpress", ALIEXPRESS)


def table_9(study: Study) -> Report:
    """Reproduce Table 9, which is Table 7 of Tenrec."""
    return _expert_table(study, "Table 9", "Tenrec", TENREC)


def _expert_table(study: Study, which: str, data: str, scenarios: tuple[str, ...]) -> Report:
    worlds = study.few_worlds
    runs = study.run_all(
        which,
        {
            (world, count): changed(settings, {"model.experts": count})
            for world, settings in worlds.items()
            for count in EXPERTS
        },
    )
    sheet = Sheet(study, study.setup, NOTE, _ABOUT_EXPERTS, papers_note(study, data))
    for count in EXPERTS:
        of_row = {world: runs[world, count] for world in worlds}
        paper = {name: of_experts(name, count) for name in scenarios}
        add_line(sheet, {"experts": count}, OWN, of_row, paper, experts=count)
    found = {world: {_label(count): runs[world, count] for count in EXPERTS} for world in worlds}
    sheet.notes += difference_notes(found, _label(USUAL))
    panels = []
    for task in study.task.schema.tasks:
        drawn = {
            world: [spread(measured(runs[world, n], f"auc_{task}")) for n in EXPERTS]
            for world in worlds
        }
        label = f"test AUC of {task}"
        panels.append(Lines("experts", EXPERTS, drawn, chosen=USUAL, y_label=label))
    return sheet.report(which, "numbers of experts, test AUC", panels)


def _label(count: int) -> str:
    return f"{count} experts"
