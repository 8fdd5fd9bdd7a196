"""The dashboard as code for Weights & Biases: a workspace with the panels of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.core.extras import require
from coterie.core.registry.keys import PANELS, X_AXIS, MetricKey, Panel
from coterie.core.registry.papers import Paper, heavy, papers

OVERVIEW = "Methods side by side"
METHOD = "method"
"""Setting by which runs are grouped in the overview."""
PAPER = "paper"
"""What a W&B run is filtered by, in its config."""
SENT = "cost/up_bytes_total"


@dataclass(frozen=True)
class Section:
    """Panels under one heading.

    Attributes:
        title: the heading.
        panels: line charts.
        compares: whether runs of a method are one line, their mean, with a band of one standard
            deviation.
    """

    title: str
    panels: tuple[Panel, ...]
    compares: bool = False


def sections(paper: Paper | None = None) -> list[Section]:
    """Give what a workspace shows: an overview of methods, the core's panels, the paper's.

    Args:
        paper: whose; None for all that are installed.
    """
    chosen = papers() if paper is None else {paper.name: paper}
    own = [Section(name, one.panels) for name, one in chosen.items()]
    overview = Section(OVERVIEW, tuple(_overview(chosen)), compares=True)
    return [overview, Section("Federation", PANELS), *own]


def _overview(chosen: Mapping[str, Paper]) -> list[Panel]:
    """What methods are compared by: scores on validation, by rounds and by bytes, and the loss."""
    scores = {key.name: key for paper in chosen.values() for key in paper.keys if _is_score(key)}
    by_rounds = [Panel(f"{name}, by rounds", (name,)) for name in scores]
    first = {next((k.name for k in one.keys if _is_score(k)), "") for one in chosen.values()}
    by_bytes = [
        Panel(f"{name}, by bytes that clients sent", (name,), SENT)
        for name in scores
        if name in first
    ]
    return [*by_rounds, *by_bytes, Panel("Training loss", ("fed/loss",))]


def _is_score(key: MetricKey) -> bool:
    return key.summary is not None and key.name.startswith("eval/") and "*" not in key.name


def plan(paper: Paper | None = None) -> list[dict[str, Any]]:
    """List the panels, a row each: ``section``, ``panel``, ``y``, ``x``, ``lines``."""
    return [
        {
            "section": section.title,
            "panel": panel.title,
            "y": list(panel.keys),
            "x": panel.x,
            "lines": "mean and sd of a method" if section.compares else "a run",
        }
        for section in sections(paper)
        for panel in section.panels
    ]


def workspace(entity: str, project: str, paper: Paper | None = None) -> Any:
    """Build a ``wandb_workspaces.workspaces.Workspace`` of a user or team without saving it.

    Args:
        entity: user or team.
        project: of W&B.
        paper: whose panels and runs it shows; None shows all.

    Raises:
        UserError: wandb-workspaces is not installed.
    """
    require("dashboard", "the dashboard", "wandb_workspaces")
    reports = heavy("wandb_workspaces.reports.v2")
    workspaces = heavy("wandb_workspaces.workspaces")
    found = [
        workspaces.Section(
            name=section.title,
            is_open=True,
            panels=[_chart(reports, panel, section.compares) for panel in section.panels],
            panel_settings=workspaces.SectionPanelSettings(x_axis=X_AXIS),
        )
        for section in sections(paper)
    ]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name="coterie" if paper is None else f"coterie {paper.name}",
        sections=found,
        settings=workspaces.WorkspaceSettings(x_axis=X_AXIS),
        runset_settings=_runs(workspaces, paper),
        auto_generate_panels=True,  # histograms and the client table
    )


def _chart(reports: Any, panel: Panel, compares: bool) -> Any:
    bands: dict[str, Any] = {}
    if compares:
        group = reports.Config(METHOD)
        bands = {"groupby": group, "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    return reports.LinePlot(title=panel.title, x=panel.x, y=list(panel.keys), **bands)


def _runs(workspaces: Any, paper: Paper | None) -> Any:
    if paper is None:
        return workspaces.RunsetSettings()
    filters = heavy("wandb_workspaces.expr")
    of_paper = filters.Config(PAPER) == paper.name
    return workspaces.RunsetSettings(filters=filters.And(of_paper))


def apply(entity: str, project: str, paper: Paper | None = None) -> str:
    """Save the dashboard as a new view of a W&B project, and return its address.

    Needs an account and a network; everything else here does not. Arguments as in `workspace`.
    """
    view = workspace(entity, project, paper)
    view.save()
    return str(view.url)
