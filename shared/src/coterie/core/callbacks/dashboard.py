"""The dashboard as code: the same panels in a W&B workspace and in a local PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from coterie.core.callbacks.keys import NAMESPACES, X_AXIS
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3


@dataclass(frozen=True)
class Panel:
    """One line chart.

    Attributes:
        title: of the chart.
        keys: metric keys, one line each.
        x: key of the x axis.
    """

    title: str
    keys: tuple[str, ...]
    x: str = X_AXIS


@dataclass(frozen=True)
class Section:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


_ACCURACIES = ("eval/server_accuracy", "eval/global_accuracy", "eval/personal_accuracy")

SECTIONS: tuple[Section, ...] = (
    Section(
        "Quality",
        (
            Panel("NDCG@20: mean and worst tenth", ("eval/ndcg@20", "eval/ndcg@20_worst10")),
            Panel("Recall@20", ("eval/recall@20",)),
            Panel("NDCG@20 against bytes sent", ("eval/ndcg@20",), x="cost/up_bytes_total"),
            Panel("Validation accuracy", _ACCURACIES),
            Panel("Test accuracy", tuple(key.replace("eval/", "test/") for key in _ACCURACIES)),
            Panel("Accuracy against local steps", _ACCURACIES, x="cost/local_steps_total"),
        ),
    ),
    Section(
        "Federation",
        (
            Panel("Training loss", ("fed/loss",)),
            Panel("Clients accepted and refused", ("fed/clients", "fed/refused")),
            Panel("Block", ("block",)),
        ),
    ),
    Section(
        "Cost and privacy",
        (
            Panel("Bytes of a round", ("cost/up_bytes", "cost/down_bytes")),
            Panel("Seconds of a round", ("cost/seconds",)),
            Panel("ε spent", ("privacy/epsilon",)),
        ),
    ),
)


def workspace(entity: str, project: str, more: Sequence[Section] = ()) -> Any:
    """Build the W&B workspace without saving it.

    Args:
        entity: user or team.
        project: W&B project.
        more: sections of a paper's own keys.

    Returns:
        A ``wandb_workspaces.workspaces.Workspace``.

    Raises:
        UserError: wandb-workspaces is not installed.
    """
    try:
        reports = import_module("wandb_workspaces.reports.v2")
        workspaces = import_module("wandb_workspaces.workspaces")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the dashboard needs {error.name}: pip install wandb-workspaces"
        ) from error
    sections = [
        workspaces.Section(
            name=section.title,
            is_open=True,
            panels=[
                reports.LinePlot(title=panel.title, x=panel.x, y=list(panel.keys))
                for panel in section.panels
            ],
            panel_settings=workspaces.SectionPanelSettings(x_axis=X_AXIS),
        )
        for section in (*SECTIONS, *more)
    ]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name="coterie",
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis=X_AXIS),
        auto_generate_panels=True,  # histograms and the client table
    )


def apply(entity: str, project: str, more: Sequence[Section] = ()) -> str:
    """Save the dashboard as a new view of a W&B project, and return its address.

    Needs an account and a network; everything else here does not. Arguments as in `workspace`.
    """
    view = workspace(entity, project, more)
    view.save()
    return str(view.url)


def render(run_folder: Path, more: Sequence[Section] = ()) -> list[Path]:
    """Draw the dashboard of one run from its ``metrics.csv``.

    Panels without data are left out; a paper's own keys get a panel each. Vertical lines mark the
    starts of blocks.

    Args:
        run_folder: folder of a run.
        more: further sections.

    Returns:
        Files written (``curves.png``); none for a run without rounds.

    Raises:
        UserError: there is no readable ``metrics.csv``.
    """
    from matplotlib.figure import Figure  # its import takes longer than reading the settings

    table = _metrics(run_folder / "metrics.csv")
    panels = [panel for section in (*SECTIONS, *more) for panel in section.panels]
    known = {key for panel in panels for key in panel.keys}
    panels += [Panel(key, (key,)) for key in table if _of_a_paper(key) and key not in known]
    panels = [panel for panel in panels if panel.x in table and _measured(table, panel)]
    if not panels:
        return []
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(4.5 * COLUMNS, 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for ax, panel in zip(axes, panels, strict=False):
        _draw(ax, panel, table)
    for ax in axes[len(panels) :]:
        ax.remove()
    path = run_folder / "curves.png"
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)
    return [path]


def _metrics(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"{path} is missing: name the folder of a run that has started")
    try:
        return pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{path} is no table of metrics: {error}") from error


def _of_a_paper(key: str) -> bool:
    return "/" in key and key.split("/", 1)[0] not in NAMESPACES


def _measured(table: pd.DataFrame, panel: Panel) -> list[str]:
    return [key for key in panel.keys if key in table and _tells(table[key])]


def _tells(values: pd.Series) -> bool:
    """Whether there is something to see; the number of an only block is nothing."""
    return values.nunique() > 1 if values.name == "block" else bool(values.notna().any())


def _draw(ax: Axes, panel: Panel, table: pd.DataFrame) -> None:
    keys = _measured(table, panel)
    for key in keys:
        points = table[[panel.x, key]].dropna()
        marker = "." if len(points) < 2 else None
        ax.plot(points[panel.x], points[key], label=key, linewidth=1.2, marker=marker)
    starts = table.loc[table["block"].diff() > 0, panel.x]
    for start in starts:
        ax.axvline(start, color="0.8", linewidth=0.8, zorder=0)
    ax.set_title(panel.title, fontsize=10)
    ax.set_xlabel(panel.x, fontsize=8)
    ax.tick_params(labelsize=8)
    if len(keys) > 1:
        ax.legend(fontsize=7)
