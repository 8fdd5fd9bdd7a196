"""Results that are printed and kept as markdown. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.files import write_text, writing


@dataclass(frozen=True)
class Report:
    """A table or the numbers behind a figure.

    Attributes:
        name: of the file, as ``table2-ml-100k``.
        title: the heading.
        rows: for programs: ``method, data, metric, mean, sd, seeds, paper``.
        view: the same for people, as the paper lays it out; default is ``rows``.
        notes: lines below the table.
        figure: PNG that belongs to it, in the folder of the report.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, Any]]
    view: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    figure: Path | None = None

    def markdown(self) -> str:
        r"""Write the report as markdown.

        Example:
            >>> text = Report("t", "One", [{"method": "ft", "mean": 0.5}]).markdown()
            >>> text.splitlines()[2:]
            ['| method | mean |', '| --- | --- |', '| ft | 0.5 |']
        """
        shown = self.view or self.rows
        columns = list(dict.fromkeys(name for row in shown for name in row))
        lines = [f"# {self.title}", ""]
        if columns:
            lines += [_line(columns), _line(["---"] * len(columns))]
            lines += [_line([_cell(row.get(name)) for name in columns]) for row in shown]
        if self.figure is not None:
            lines += ["", f"![{self.title}]({self.figure.name})"]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def save(self, folder: Path) -> Path:
        """Write ``<name>.md`` into the folder and return its path.

        Raises:
            UserError: the folder cannot be written.
        """
        path = folder / f"{self.name}.md"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(path, self.markdown())
        return path


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
