"""Which columns of a user's own file play which role. Without torch, so faults are told at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from coterie.core.data.sources.file_forms import form_of
from coterie.core.data.sources.opening import DAMAGE, opened
from coterie.core.data.sources.text_files import first_line, located
from coterie.core.errors import UserError, nearest
from coterie.core.registry.data_sets import data_sets

ROLES = ("user", "item", "time", "rating", "title", "genres", "split", "order", "domain")
# A column of such a name may mean something else: these are read only where they are named.
_ONLY_NAMED = ("split", "order", "domain")
_SEPARATORS = (",", "\t", ";")
_LONGEST_HEADER = 1 << 20  # bytes
_MOST_NAMED = 20  # columns that a message lists


def wanted_columns(named: Mapping[str, str]) -> dict[str, str]:
    """Column to look for, by role.

    Args:
        named: column by role, as the user names them. Other roles are looked for under their own
            names, except ``split``, ``order`` and ``domain``.

    Raises:
        UserError: for an unknown role, or both ``time`` and ``order``.

    Example:
        >>> wanted_columns({"user": "who", "order": "step"})["user"]
        'who'
    """
    for role in named:
        if role not in ROLES:
            raise UserError(f"--data.columns: '{role}' is no role: {nearest(role, ROLES)}")
    if {"time", "order"} <= set(named):
        raise UserError("--data.columns: 'order' takes the place of 'time': leave one of them out")
    left_out = {"time"} if "order" in named else set()
    return {
        role: named.get(role, role)
        for role in ROLES
        if role in named or role not in (*_ONLY_NAMED, *left_out)
    }


def columns_by_role(
    path: Path, has: Collection[str], named: Mapping[str, str], unit: str = "line"
) -> dict[str, str]:
    """Column of every role that a file has.

    Args:
        path: the file.
        has: its columns.
        named: as in `wanted_columns`.
        unit: ``line``, or ``row`` where the file is no text.

    Raises:
        UserError: as `wanted_columns`; or a column is missing that is named, or for user or item.
    """
    wanted = wanted_columns(named)
    for role in [role for role in ROLES if role in {*named, "user", "item"}]:
        if wanted[role] not in has:
            what = f"no column '{wanted[role]}' for the {role}"
            hint = f"{columns_hint(wanted[role], has)} (--data.columns {role}=COLUMN)"
            raise located(path, 1, what, hint, unit)
    return {role: column for role, column in wanted.items() if column in has}


def check_columns(name_or_path: str, named: Mapping[str, str]) -> None:
    """Check roles, and the columns of a CSV file by its first line, before anything heavy starts.

    What is wrong with the file itself is left to `coterie.core.data.sources.own_file.read_own`.

    Raises:
        UserError: as `columns_by_role`.
    """
    wanted = wanted_columns(named)
    path = Path(name_or_path).expanduser()
    if name_or_path in data_sets() or not path.is_file():
        return
    try:
        if form_of(path) != "csv":
            return
        with opened(path) as file:
            line = file.readline(_LONGEST_HEADER).decode("utf-8-sig")
    except (*DAMAGE, OSError, UnicodeDecodeError, UserError):
        return
    if line.strip() and line.endswith("\n") and not line.count('"') % 2:
        columns_by_role(path, header(line, wanted.values()), named)


def header(text: str, wanted: Collection[str]) -> list[str]:
    """Columns in the first line of a CSV text."""
    return _fields(text, separator(text, wanted))


def separator(text: str, wanted: Collection[str]) -> str:
    """Comma, tab or semicolon: the one that finds most of the wanted columns in the first line."""

    def found(mark: str) -> tuple[int, int]:
        fields = _fields(text, mark)
        return len(set(wanted).intersection(fields)), len(fields)

    return max(_SEPARATORS, key=found)


def columns_hint(word: str, names: Collection[str]) -> str:
    """Name the nearest of the columns, or what there is; briefly even where there are thousands.

    Example:
        >>> columns_hint("usr", ["user", "item"])
        "did you mean 'user'?"
    """
    if len(names) <= _MOST_NAMED:
        return nearest(word, names)
    some = ", ".join(name[:40] for name in list(names)[:3])
    return f"the file has {len(names):,} columns, the first are {some}"


def _fields(text: str, mark: str) -> list[str]:
    return [field.strip() for field in first_line(text, mark, quoted=True)]
