"""Results that are printed, and kept as markdown and as LaTeX. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import write_text, writing
from coterie.core.tables.latex import Better, cell, latex_table


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
        first: columns that matter most, where a terminal has no room for all.
        better: of which columns of the view the best value stands out, and which it is.
        within: columns by which its rows fall into groups, each with a best value of its own.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, Any]]
    view: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    figure: Path | None = None
    first: Sequence[str] = ()
    better: Better = field(default_factory=dict)
    within: Sequence[str] = ()

    def markdown(self) -> str:
        """Write the report as markdown: heading, `markdown_table`, figure and notes."""
        lines = [f"# {self.title}", "", *markdown_table(self.view or self.rows)]
        if self.figure is not None:
            lines += ["", f"![{self.title}]({self.figure.name})"]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Write the report as a LaTeX table that booktabs lays out; empty for no rows."""
        return latex_table(
            self.view or self.rows, self.title, self.name, self.notes, self.better, self.within
        )

    def save(self, folder: Path) -> Path:
        """Write ``<name>.md`` and ``<name>.tex`` into the folder; return the path of the first.

        Raises:
            UserError: the folder cannot be written.
        """
        path = folder / f"{self.name}.md"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(path.with_suffix(".tex"), self.latex())
        write_text(path, self.markdown())
        return path


def read_saved(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no such file.

    Raises:
        UserError: it is damaged.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return found


def saved_report(path: Path, title: str) -> Report | None:
    """Read a report whose ``rows`` and ``notes`` were kept as JSON; None where there is none.

    Raises:
        UserError: it is damaged.
    """
    found = read_saved(path)
    if found is None:
        return None
    rows, notes = found.get("rows"), found.get("notes", [])
    tabular = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    if not tabular or not isinstance(notes, list):
        raise UserError(f"{path} is damaged: it holds no rows and notes")
    return Report(path.stem, title, rows or [], notes=[str(note) for note in notes])


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    r"""Write rows as the lines of a markdown table; none for no rows.

    Example:
        >>> print("\n".join(markdown_table([{"a|b": 0.5, "c": None}])))
        | a\|b | c |
        | --- | --- |
        | 0.5 | - |
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return []
    cells = [columns, ["---"] * len(columns)]
    return [_line(c) for c in [*cells, *([cell(row.get(n)) for n in columns] for row in rows)]]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
