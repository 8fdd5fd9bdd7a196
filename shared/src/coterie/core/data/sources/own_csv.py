"""Reader of a CSV file of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.readers import build
from coterie.core.data.sources.tables import (
    Layout,
    Table,
    first_line,
    located,
    read_table,
    read_text,
)
from coterie.core.errors import UserError, nearest

ROLES = ("user", "item", "time", "rating", "title", "genres")
_SEPARATORS = (",", "\t", ";")
_FRACTIONS_PER_SECOND = 1_000_000


def read_csv(path: Path, columns: Mapping[str, str] | None = None) -> Interactions:
    """Read any CSV file with a header line, plain or ``.gz``.

    The separator (comma, tab or semicolon) is the one that finds most of the columns in the
    header. Ids are kept as text. Times may be numbers (any unit) or ISO 8601 dates (kept as
    microseconds since 1970, UTC where no zone is given). Without a time column every time is 0,
    which is refused only where times are needed. Genres are separated by ``|``.

    Args:
        path: the file, in UTF-8.
        columns: column name by role ("user", "item", "time", "rating", "title", "genres"); a role
            that is not named is looked for under its own name.

    Raises:
        UserError: for an unknown role or column, or a malformed line, naming file and line.
    """
    wanted = _wanted(columns or {})
    text = read_text(path, Layout(()))
    separator = _separator(text, set(wanted.values()))
    header = [field.strip() for field in first_line(text, separator, quoted=True)]
    role_of = _roles(path, header, wanted, set(columns or {}))
    layout = Layout(
        tuple(header),
        separator,
        header=True,
        quoted=True,
        remedy="correct or delete the line, or name other columns by --data.columns",
    )
    table = read_table(path, layout, as_text=True)
    item = _filled(table, role_of["item"])
    return build(
        np.asarray(_filled(table, role_of["user"]), dtype=object),
        np.asarray(item, dtype=object),
        _times(table, role_of["time"]) if "time" in role_of else np.zeros(len(item), np.int64),
        table.numbers(role_of["rating"]) if "rating" in role_of else None,
        _by_item(item, table.strings(role_of["title"])) if "title" in role_of else None,
        _genres(item, table.strings(role_of["genres"])) if "genres" in role_of else None,
        str(path),
    )


def _wanted(columns: Mapping[str, str]) -> dict[str, str]:
    for role in columns:
        if role not in ROLES:
            raise UserError(f"--data.columns: '{role}' is no role: {nearest(role, ROLES)}")
    return {role: columns.get(role, role) for role in ROLES}


def _separator(text: str, wanted: set[str]) -> str:
    def found(separator: str) -> tuple[int, int]:
        fields = [field.strip() for field in first_line(text, separator, quoted=True)]
        return len(wanted.intersection(fields)), len(fields)

    return max(_SEPARATORS, key=found)


def _roles(
    path: Path, header: list[str], wanted: dict[str, str], named: set[str]
) -> dict[str, str]:
    """Column of every role that the file has."""
    if len(set(header)) < len(header):
        raise located(path, 1, "a column name occurs twice", "rename one of them")
    for role in [role for role in ROLES if role in named | {"user", "item"}]:
        if wanted[role] not in header:
            remedy = f"{nearest(wanted[role], header)} (--data.columns {role}=COLUMN)"
            raise located(path, 1, f"no column '{wanted[role]}' for the {role}", remedy)
    return {role: column for role, column in wanted.items() if column in header}


def _filled(table: Table, column: str) -> list[str]:
    values = table.strings(column)
    blank = np.array([not value.strip() for value in values])
    if blank.any():
        raise table.fault(int(blank.argmax()), f"column '{column}' is empty")
    return values


def _times(table: Table, column: str) -> np.ndarray:
    """Times as ``(n,)`` int64: whole numbers as they are, fractions and dates in microseconds."""
    values = pd.Series(_filled(table, column))
    first = pd.to_numeric(values[:1], errors="coerce")
    if first.isna().any():
        return _dates(table, column, values)
    whole = pd.to_numeric(values, errors="coerce")
    if whole.dtype == np.int64:  # exact even for nanoseconds, which float64 is not
        return whole.to_numpy()
    number = table.numbers(column)
    if not (number % 1).any() and np.abs(number).max() < 2.0**53:
        return number.astype(np.int64)
    scaled = number * _FRACTIONS_PER_SECOND
    too_large = np.abs(scaled) >= 2.0**63
    if too_large.any():
        raise table.fault(int(too_large.argmax()), f"column '{column}' is too large for a time")
    return np.rint(scaled).astype(np.int64)


def _dates(table: Table, column: str, values: pd.Series) -> np.ndarray:
    dates = pd.to_datetime(values, format="ISO8601", utc=True, errors="coerce")
    bad = dates.isna().to_numpy()
    if bad.any():
        row = int(bad.argmax())
        what = f"column '{column}' is '{values[row][:40]}', neither a number nor an ISO 8601 date"
        raise table.fault(row, what)
    return dates.dt.tz_convert(None).to_numpy().astype("datetime64[us]").astype(np.int64)


def _by_item(item: list[str], title: list[str]) -> dict[str, str]:
    """First title given for every item."""
    return dict(zip(reversed(item), reversed(title), strict=True))


def _genres(item: list[str], genres: list[str]) -> dict[str, list[str]]:
    return {
        name: [genre for genre in field.split("|") if genre]
        for name, field in _by_item(item, genres).items()
    }
