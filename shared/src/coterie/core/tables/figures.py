"""The report of a figure: an image beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.tables.plots import Panel, plot_panels
from coterie.core.tables.report import Report
from coterie.core.tables.study import Study

Rows = Sequence[Mapping[str, Any]]


def figure_report(
    study: Study[Any, Any],
    which: str,
    title: str,
    tables: tuple[Rows, Rows],
    notes: Sequence[str],
    panels: Sequence[Panel],
    columns: int | None = None,
) -> Report:
    """Draw panels and put them beside their numbers.

    Args:
        study: names the files.
        which: as "figure4".
        title: the heading; the number of seeds is added.
        tables: rows for programs, and for people.
        notes: lines below.
        panels: of the image.
        columns: panels in a row; None = all in one.

    Raises:
        UserError: the image cannot be written.
    """
    file = study.file(which)
    title = f"{title}, {study.n_seeds}"
    image = plot_panels(panels, title, study.folder / f"{file}.png", columns)
    return Report(file, title, *tables, notes, image)
