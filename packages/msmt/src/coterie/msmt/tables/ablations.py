"""Tables 6 to 9: what each module contributes, and how many experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.settings.schema import changed
from coterie.core.style import Roles
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import SHARE, Lines
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet
from coterie.msmt.published import ALIEXPRESS, EXPERTS, TENREC, of_ablation, of_experts
from coterie.msmt.settings import Settings
from coterie.msmt.tables.layout import (
    NOTE,
    Printed,
    add_line,
    difference_notes,
    measured,
    panels,
    papers_note,
)
from coterie.msmt.tables.main_table import printed
from coterie.msmt.tables.rows import LOCAL, OWN, ROWS
from coterie.msmt.tables.study import Study

FULL, ALONE = "full", "alone"
PAPERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a1": ("A1: W_s and towers averaged", {"pf.expert": "fedavg", "pf.tower": "fedavg"}),
    "a2": ("A2: all of the experts averaged", {"pf.expert": "fedavg", "pf.share": ("experts",)}),
    "a3": ("A3: W_s averaged", {"pf.expert": "fedavg"}),
    "a4": ("A4: towers averaged", {"pf.tower": "fedavg"}),
}
"""The paper's ablations: labels and settings."""
OURS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "no-fedbn": ("no FedBN", {"pf.fedbn": "off"}),
    "no-coordination": ("no coordination", {"pf.coordinate": False}),
    "no-psi": ("no ψ", {"pf.psi": False}),
    "no-alignment": ("no alignment (lam 0)", {"pf.lam": 0.0}),
    "literal": ("literal reading", {"reading": "literal"}),
    "centre-own": ("ball around the own increment", {"pf.centre": "own"}),
    "per-expert": ("each expert by itself", {"pf.per_expert": True}),
    "factored": ("factors uploaded", {"pf.upload": "factored"}),
    "leaf": ("W_s not generated", {"pf.generator": "leaf"}),
    "server-lr": ("server step 10", {"pf.server_lr": 10.0}),
    "embeddings": ("+ shared embeddings", {"pf.share": ("embeddings",)}),
    "all-shared": (
        "+ shared embeddings, gates, experts",
        {"pf.share": ("embeddings", "gates", "experts")},
    ),
    ALONE: ("no federation", ROWS[LOCAL].values),
}
"""Options of ours."""
VARIANTS = {FULL: (ROWS[OWN].label, ROWS[OWN].values), **PAPERS, **OURS}
SUMMED = "alignment-sum"
_ABOUT_ABLATIONS = (
    "A1 to A4 as in the paper, where A3's numbers are digit for digit those of the full model; "
    "below them options of ours, each the full model but for what is said."
)


def table_6(study: Study) -> Report:
    """Reproduce Table 6; the paper's numbers are of AliExpress."""
    return _ablation_table(study, "Table 6", "AliExpress", ALIEXPRESS)


def table_8(study: Study) -> Report:
    """Reproduce Table 8, which is Table 6 of Tenrec."""
    return _ablation_table(study, "Table 8", "Tenrec", TENREC)


def _ablation_table(study: Study, which: str, data: str, scenarios: tuple[str, ...]) -> Report:
    worlds = study.few_worlds
    labels = {name: label for name, (label, _) in VARIANTS.items()}
    labels[SUMMED] = "alignment as a sum (λ · D · h1)"
    runs = study.run_all(
        which,
        {
            (world, name): _variant(settings, name, study.task.schema.n_inputs)
            for world, settings in worlds.items()
            for name in labels
        },
    )
    sheet = Sheet(study, study.setup, NOTE, _ABOUT_ABLATIONS, papers_note(study, data))
    for name, label in labels.items():
        of_row = {world: runs[world, name] for world in worlds}
        add_line(sheet, {"variant": label}, OWN, of_row, _printed(scenarios, name), variant=name)
    found = {
        world: {label: runs[world, name] for name, label in labels.items()} for world in worlds
    }
    own = VARIANTS[FULL][0]
    sheet.notes += difference_notes(found, own)
    return sheet.report(which, "ablations, test AUC", panels(found, own), columns=3)


def _variant(settings: Settings, name: str, n_inputs: int) -> Settings:
    """Settings of a variant; λ of a sum over W_s, as Eq. 23 has it, is so many times larger."""
    if name != SUMMED:
        return changed(settings, VARIANTS[name][1])
    model = settings.model
    numbers = n_inputs * model.embedding * model.expert_layers[0]
    return changed(settings, {"pf.lam": settings.pf.lam * numbers})


def _printed(scenarios: tuple[str, ...], name: str) -> Printed:
    """Give the paper's numbers of a variant by scenario; nothing for ours."""
    if name == FULL:
        return printed(scenarios, ROWS[OWN].paper)
    if name == ALONE:
        return printed(scenarios, ROWS[LOCAL].paper)
    return (
        {scenario: of_ablation(scenario, name) for scenario in scenarios} if name in PAPERS else {}
    )


# Tables 7 and 9: how many experts.

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
        panels.append(
            Lines(
                "experts",
                EXPERTS,
                drawn,
                chosen=USUAL,
                y_label="test AUC",
                title=task,
                roles=Roles(better="higher"),
                bounds=SHARE,
            )
        )
    return sheet.report(which, "numbers of experts, test AUC", panels)


def _label(count: int) -> str:
    return f"{count} experts"
