"""A report while it is filled: rows for programs, lines for people, notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from coterie.core.tables.latex import Better
from coterie.core.tables.paired import spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.plots import Panel
from coterie.core.tables.report import Report
from coterie.core.tables.result import Values, known
from coterie.core.tables.study import Study

T = TypeVar("T", bound=Study[Any])
Line = dict[str, Any]


class Sheet(Generic[T]):
    """Rows, lines and notes of one table or figure.

    Args:
        study: whose data, seeds and folder.
        notes: the first ones.

    Attributes:
        rows: for programs.
        lines: for people, as the paper lays its table out.
        notes: lines below the table.
    """

    def __init__(self, study: T, *notes: str) -> None:
        self.study = study
        self.rows: list[Line] = []
        self.lines: list[Line] = []
        self.notes = list(notes)

    def line(self, **labels: Any) -> Line:
        """Add a line, to be filled by `cell`."""
        self.lines.append(labels)
        return labels

    def row(
        self,
        method: str,
        metric: str,
        values: Values,
        paper: float | None = None,
        **more: Any,
    ) -> None:
        """Add a row: mean and spread over seeds, and the paper's value."""
        found = spread(values)
        row = {"method": method, "data": self.study.data, "metric": metric, "mean": found.mean}
        self.rows.append({**row, "sd": found.sd, "seeds": found.n, "paper": paper, **more})

    def cell(
        self,
        line: Line,
        label: str,
        method: str,
        metric: str,
        values: Values,
        paper: float | None = None,
        **more: Any,
    ) -> None:
        """Add a row, and the same under a label in a line for people."""
        self.row(method, metric, values, paper, **more)
        line[label] = cell(values, paper)

    def report(
        self,
        which: str,
        what: str,
        panels: Sequence[Panel] = (),
        columns: int | None = None,
        seeds: bool = True,
        better: Better | None = None,
        within: Sequence[str] = (),
    ) -> Report:
        """Lay the sheet out, with an image if there is anything to draw.

        Args:
            which: as "Table 2", the name of the file too.
            what: the rest of the heading, behind the data.
            panels: of the image.
            columns: panels in a row; None = all in one.
            seeds: whether the heading ends with their number.
            better: of which columns for people the best value stands out, and which it is.
            within: columns by which its lines fall into groups, each with a best value.

        Raises:
            UserError: the image cannot be written.
        """
        study, image = self.study, None
        title = f"{which}, {study.data}: {what}" + (f", {study.n_seeds}" if seeds else "")
        file = study.file(which.lower().replace(" ", ""))
        if panels:
            path = study.folder / f"{file}.png"
            image = plot_panels(panels, self._caption(what, seeds), path, columns)
        return Report(
            *(file, title, self.rows, self.lines, self.notes, image),
            better=better or {},
            within=within,
        )

    def _caption(self, what: str, seeds: bool) -> str:
        """Say what a picture shows, and of which paper and data."""
        study = self.study
        about = [study.paper.name, study.data, *([study.n_seeds] if seeds else [])]
        return f"{what[:1].upper()}{what[1:]} ({', '.join(about)})"


def cell(values: Values, paper: float | None = None, digits: int = 4, scale: float = 1.0) -> str:
    """Write mean ± standard deviation of the values that are known, and the paper's in brackets.

    Example:
        >>> cell([0.91, 0.93], 0.9146, digits=2, scale=100), cell([1234.5]), cell([float("nan")])
        ('92.00 ± 1.41 (91.46)', '1,234.5000', '-')
    """
    found = spread([scale * value for value in known(values)])
    if not found.n:
        return "-"
    text = found.text(digits)
    return text if paper is None else f"{text} ({scale * paper:.{digits}f})"
