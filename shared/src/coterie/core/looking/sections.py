"""What a page is made of: sections with facts, tables and charts, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.core.tables.report import Report

if TYPE_CHECKING:
    from coterie.core.looking.charts import Chart

_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?( ?(%|bytes|[kMGT]?B|s))?( ± [\d.,]+)?")


@dataclass(frozen=True)
class Sheet:
    """A table with its heading.

    Attributes:
        name: short, for links.
        title: the heading.
        rows: texts by column.
        notes: lines below.
        first: columns that matter most, where there is no room for all.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    first: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def numeric(self) -> set[str]:
        """The columns of numbers, some of which may be missing."""
        found = {name: [row.get(name, "-") for row in self.rows] for name in self.columns}
        return {
            name
            for name, cells in found.items()
            if any(cell != "-" for cell in cells)
            and all(cell == "-" or _NUMBER.fullmatch(str(cell)) for cell in cells)
        }


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        name: for links to it.
        title: the heading.
        words: paragraphs below it.
        facts: texts by name.
        charts: pictures.
        sheets: tables.
        code: commands to type.
        folded: whether it is opened by a click.
    """

    name: str
    title: str
    words: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    sheets: Sequence[Sheet] = ()
    code: Sequence[str] = ()
    folded: bool = False


def sheet_of(report: Report) -> Sheet:
    """A report of a table or figure as a sheet."""
    rows = [
        {name: text(value) for name, value in row.items()} for row in report.view or report.rows
    ]
    return Sheet(report.name, report.title, rows, tuple(report.notes), tuple(report.first))


def text(value: Any) -> str:
    """Write a value for a table.

    Example:
        >>> text(0.10341), text(58771), text(None), text(float("nan"))
        ('0.1034', '58,771', '-', '-')
    """
    if value is None or value != value:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
